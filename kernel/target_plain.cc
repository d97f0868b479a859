#define ROOTDK_TARGET plain
#include "target-inl.h"
