#define ROOTDK_TARGET avx512
#include "target-inl.h"
