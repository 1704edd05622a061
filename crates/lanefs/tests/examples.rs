//! The examples run to their ends.

#[path = "../examples/device.rs"]
mod device_of_ones_own;
#[path = "../examples/embedder.rs"]
mod embedder;
#[path = "../examples/inodes.rs"]
mod inodes;
#[path = "../examples/tokio.rs"]
mod tokio_example;

#[test]
fn an_embedder_in_thirty_lines_runs() {
    embedder::main().unwrap();
}

#[test]
fn a_server_by_inode_number_runs() {
    inodes::main().unwrap();
}

#[test]
fn a_tokio_program_runs() {
    tokio_example::main().unwrap();
}

#[test]
fn a_device_of_ones_own_runs() {
    device_of_ones_own::main().unwrap();
}
