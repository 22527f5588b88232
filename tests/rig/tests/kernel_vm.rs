//! The virtual machine of the rig.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

/// The Makefile skips tests with this name if there is no emulator.
mod kernel {
    use rig::{KernelVm, RunDir, kernel_vm::ScriptOutput};

    #[tokio::test]
    async fn a_machine_runs_scripts_and_mounts_its_exports_in_every_version() {
        let run = RunDir::new().unwrap();
        let vm = KernelVm::start(&run).await.unwrap();
        let failed = ScriptOutput {
            code: 3,
            output: "said\n".into(),
        };
        assert_eq!(vm.output("echo said; exit 3").await.unwrap(), failed);
        assert!(
            vm.run("exit 1")
                .await
                .unwrap_err()
                .to_string()
                .contains("exited with 1")
        );

        let (port, mount_port) = (vm.nfs_port(), vm.mount_port());
        let v3 = format!("3,mountport={mount_port},nolock");
        for version in ["4.2", "4.1", "4.0", &v3] {
            let script = format!(
                "set -e; mkdir -p /mnt/first
                 mount.nfs 127.0.0.1:/plain /mnt/first -o port={port},nfsvers={version}
                 echo {version} >/mnt/first/seen; umount.nfs /mnt/first; cat /plain/seen"
            );
            assert_eq!(vm.run(&script).await.unwrap(), format!("{version}\n"));
        }
        drop(vm);
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    }
}
