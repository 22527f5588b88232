//! Programs of this machine that run in the virtual machine, which has the same C library.

use std::path::Path;

use tokio::{
    fs,
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    process::Command,
};

use super::{HOST, KernelVm};
use crate::error::{Error, Result, ResultExt as _};

impl KernelVm {
    /// Copies a program without its debug information, and the libraries that the machine lacks.
    pub async fn install_program(&self, program: &Path, to: &str) -> Result<()> {
        let small = program.with_extension(format!("{}.stripped", crate::random_suffix()));
        let stripped = Command::new("strip").arg("-o").arg(&small).arg(program).status().await;
        let is_stripped = stripped.is_ok_and(|status| status.success());
        let copied = self.copy_file(if is_stripped { &small } else { program }, to).await;
        let _ = fs::remove_file(&small).await;
        copied?;
        let listed = Command::new("ldd").arg(program).output().await;
        let listed = listed.with_context(|| format!("list the libraries of {}", program.display()))?;
        for line in String::from_utf8_lossy(&listed.stdout).lines() {
            // "name => path (address)"
            let Some((name, rest)) = line.trim().split_once(" => ") else {
                continue;
            };
            let Some((path, _)) = rest.split_once(' ') else {
                continue;
            };
            let there = format!("/lib64/{name}");
            if self.output(&format!("test -e {there}")).await?.code != 0 {
                self.copy_file(Path::new(path), &there).await?;
            }
        }
        Ok(())
    }

    /// Copies a file into the machine, as an executable one.
    pub async fn copy_file(&self, from: &Path, to: &str) -> Result<()> {
        let doing = || format!("copy {} to the machine", from.display());
        let content = fs::read(from).await.with_context(doing)?;
        let listener = TcpListener::bind("127.0.0.1:0").await.with_context(doing)?;
        let port = listener.local_addr().with_context(doing)?.port();
        let send = async {
            let (mut stream, _): (TcpStream, _) = listener.accept().await?;
            stream.write_all(&content).await?;
            stream.shutdown().await
        };
        let script = format!(
            "mkdir -p \"$(dirname {to})\" && nc {HOST} {port} </dev/null >{to} && chmod 0755 {to} && stat -c %s {to}"
        );
        // A script that fails connects to nothing.
        let ((), size) = tokio::try_join!(async { send.await.with_context(doing) }, self.run(&script))?;
        match size.trim().parse() == Ok(content.len()) {
            true => Ok(()),
            false => Err(Error::Usage(format!("{}: it arrived incomplete", doing()))),
        }
    }
}
