#define ROOTDK_TARGET neon
#include "target-inl.h"
