//! Shows the space and the inodes of the file system behind an export.
//!
//! ```sh
//! cargo run --example df -- nfs.example.com:/export
//! ```

mod common;

use std::process::ExitCode;

use clap::Parser;
use nfs_client::address::ExportAddress;

/// Show the space and the inodes of an NFS export.
#[derive(Parser)]
struct Arguments {
    /// The export, or a directory in it.
    #[arg(value_name = "SERVER:/EXPORT[/PATH]", value_parser = ExportAddress::parse)]
    export: ExportAddress,
    #[command(flatten)]
    options: common::ConnectOptions,
}

#[tokio::main]
async fn main() -> ExitCode {
    common::exit_code(run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> Result<(), common::Error> {
    let client = arguments.options.connect(&arguments.export).await?;
    let negotiated = client.negotiated();
    let statistics = client.statistics().await;
    client.close().await;

    let statistics = statistics?;
    let space_used = statistics.total.saturating_sub(statistics.available);
    println!(
        "{} (NFSv{}, {})",
        arguments.export, negotiated.protocol, negotiated.peer
    );
    println!(
        "space:  {} of {} used ({}), {} available",
        common::human(space_used),
        common::human(statistics.total),
        percentage(space_used, statistics.total),
        common::human(statistics.available),
    );
    match statistics.inodes {
        0 => println!("inodes: not counted by the server"),
        inodes => {
            let used = inodes.saturating_sub(statistics.inodes_free);
            println!("inodes: {used} of {inodes} used ({})", percentage(used, inodes));
        }
    }
    Ok(())
}

fn percentage(part: u64, whole: u64) -> String {
    format!("{:.0}%", 100.0 * part as f64 / whole.max(1) as f64)
}
