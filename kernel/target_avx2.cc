#define ROOTDK_TARGET avx2
#include "target-inl.h"
