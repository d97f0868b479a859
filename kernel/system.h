// All that differs between operating systems. One file per system has it: system_posix.cc, system_windows.cc.
#pragma once

namespace rootdk {

// How many CPUs this process may run on; 0 where the system does not tell.
int allowed_cpus();

// From now on called in the child of every fork; never where there is no fork.
void after_fork(void (*in_the_child)());

// A function of a library that some other part of the process has loaded; null where it has not. Loads nothing.
void* loaded_function(const char* library, const char* function);

// Whether this process may use the tile registers of AMX. Linux wants to be asked, because they make a signal's frame larger.
bool permits_tiles();

}  // namespace rootdk
