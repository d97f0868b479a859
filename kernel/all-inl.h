// The kernel's source in the order in which it builds on itself: each file uses the ones before it. Included once per
// instruction set, by a file that has defined ROOTDK_TARGET.
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "attention.h"
#include "segments.h"
#include "visibility.h"
// clang-format off
#include "simd-inl.h"
#include "powers-inl.h"
#include "convert-inl.h"
#include "tile-inl.h"
#include "panel-inl.h"
#include "scores-inl.h"
#include "softmax-inl.h"
#include "reading-inl.h"
#include "dropout-inl.h"
#include "forward-inl.h"
#include "few-inl.h"
#include "bias_gradient-inl.h"
#include "backward_parts-inl.h"
#include "backward-inl.h"
#include "weights-inl.h"
#include "tangent-inl.h"
#include "few_tangent-inl.h"
// clang-format on
