//! An nfs-ganesha of one test's own.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server with one export; killed and its folder removed when dropped.
pub struct Ganesha {
    folder: PathBuf,
    pub port: u16,
    child: Child,
}

impl Ganesha {
    pub fn start() -> Self {
        Self::start_with("Squash = No_Root_Squash;")
    }

    /// `more` is put into the EXPORT block.
    pub fn start_with(more: &str) -> Self {
        Self::start_speaking("1,2", more)
    }

    /// Speaks these minor versions of NFSv4.
    pub fn start_speaking(minors: &str, more: &str) -> Self {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let folder = std::env::temp_dir().join(format!("nfs-client-test-{}-{port}", std::process::id()));
        std::fs::create_dir_all(folder.join("data")).unwrap();
        let data = folder.join("data");
        let data = data.display();
        let recovery = folder.join("recovery");
        std::fs::create_dir_all(&recovery).unwrap();
        let recovery = recovery.display();
        let config = format!(
            "NFS_CORE_PARAM {{ NFS_Protocols = 4; NFS_Port = {port}; Bind_addr = 127.0.0.1; Enable_NLM = false;
               Enable_RQUOTA = false; Enable_UDP = false; }}
             NFSV4 {{ Graceless = true; Lease_Lifetime = 10; Grace_Period = 0; RecoveryBackend = fs;
               RecoveryRoot = {recovery}; Minor_Versions = {minors}; }}
             EXPORT {{ Export_Id = 1; Path = {data}; Pseudo = /data; Access_Type = RW;
               Protocols = 4; Transports = TCP; SecType = sys; {more} FSAL {{ Name = VFS; }} }}"
        );
        std::fs::write(folder.join("ganesha.conf"), config).unwrap();
        let child = Self::run(&folder, port);
        Self { folder, port, child }
    }

    fn run(folder: &Path, port: u16) -> Child {
        // Ends also when the tests are killed. The signal comes with the end of this thread, which is the test's own.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "ganesha.nfsd", "-F"])
            .args(["-f".as_ref(), folder.join("ganesha.conf").as_os_str()])
            .args(["-L".as_ref(), folder.join("ganesha.log").as_os_str()])
            .args(["-p".as_ref(), folder.join("ganesha.pid").as_os_str()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let began = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            assert!(began.elapsed() < Duration::from_secs(20), "ganesha does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        child
    }

    /// The exported folder, as the server's file system has it.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Kills it and starts it again, with what it remembers of its clients.
    pub fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = Self::run(&self.folder, self.port);
    }
}

impl Drop for Ganesha {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
