//! Sets the linker flags of a module for Node.

fn main() {
    napi_build::setup();
}
