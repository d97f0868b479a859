// Whether this process may use the tile registers of AMX.
#pragma once

namespace rootdk {

// The CPU has them, the operating system saves them, and it lets this process use them: Linux wants to be asked once,
// because the registers make a signal's frame larger.
bool amx_permitted();

}  // namespace rootdk
