// The kernel's passes as targets of XLA's foreign function interface, by which jax calls them. Compiled only where the headers
// of that interface were found (CMakeLists.txt); they come with jaxlib.
#pragma once

#include <utility>
#include <vector>

namespace rootdk {

std::vector<std::pair<const char*, void*>> xla_targets();  // names and handlers
std::pair<int, int> xla_api();  // the version of the interface that it was compiled for

}  // namespace rootdk
