// All that differs between operating systems. One file per system implements it: system_posix.cc, system_windows.cc.
#pragma once

namespace rootdk {

// How many CPUs this process may run on; 0 if the system does not say.
int allowed_cpus();

// From now on called in the child of every fork; never where there is no fork.
void after_fork(void (*in_the_child)());

// A function of a library that some other part of the process has loaded; null where it has not. Loads nothing.
void* loaded_function(const char* library, const char* function);

// Whether this process may use the tile registers of AMX. Linux must be asked first, because they make the stack frame of a
// signal larger.
bool permits_tiles();

}  // namespace rootdk
