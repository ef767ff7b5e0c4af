// Ctrl-C, cooperatively: long loops ask interrupted() and stop.
#pragma once

namespace kdtree::cli {

// SIGINT sets a flag (a second one ends the program at once); SIGPIPE is ignored, so that a closed pipe is a
// failed write and not a silent death.
void install_signal_handlers();
bool interrupted();

}  // namespace kdtree::cli
