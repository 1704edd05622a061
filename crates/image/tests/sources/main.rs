//! What is read from directories, archives and container images, against the programs that made them and the kernel.

mod hostile;
mod merge;
mod oci;
mod support;
mod tar;
