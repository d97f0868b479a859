// Which instruction sets this process may use: the CPU has them, and the operating system saves their registers.
#pragma once

namespace rootdk {

bool has_avx2();    // with FMA and F16C, which a hypervisor may hide from a guest that has AVX2
bool has_avx512();  // F, DQ, BW and VL, with FMA and F16C
bool has_amx();     // tiles and their bfloat16 product; the system lets this process use them

}  // namespace rootdk
