//! What is read from directories, archives and container images, against the programs that made them and the kernel.

mod documents;
mod endings;
mod foreign;
mod hostile;
mod layers;
mod merge;
mod oci;
mod piped;
mod support;
mod tar;
