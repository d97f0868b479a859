// Strided arrays in blocks of exactly their extent, so that a touch one element beyond is seen: by AddressSanitizer, and by a
// page without any access right behind or right before the block, which also stops what AddressSanitizer does not look at
// (loads of tile registers, stores past the caches).
//
// What lies between the rows (padding) is all ones in every byte, which is NaN in every stored type: read by mistake it
// spoils a result, written by mistake it is seen afterwards.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "number.h"
#include "random.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#endif
#endif

namespace fuzz {

// Whole pages between two that nobody may touch. Kept for the next block of that size: asking for them takes long.
class guarded_pages {
 public:
  static char* take(int64_t pages) {
    std::vector<char*>& kept = spare()[pages];
    if (!kept.empty()) {
      char* const start = kept.back();
      kept.pop_back();
      return start;
    }
    const size_t bytes = size_t((pages + 2) * page);
    char* const whole = static_cast<char*>(mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (whole == MAP_FAILED) std::abort();
    if (pages > 0 && mprotect(whole + page, size_t(pages * page), PROT_READ | PROT_WRITE) != 0) std::abort();
    return whole + page;
  }
  static void give_back(char* start, int64_t pages) { spare()[pages].push_back(start); }
  static inline const int64_t page = sysconf(_SC_PAGESIZE);

 private:
  static std::map<int64_t, std::vector<char*>>& spare() {
    static std::map<int64_t, std::vector<char*>> all;
    return all;
  }
};

// Either the first byte follows a guard page or the last one precedes one; the other side AddressSanitizer guards, to the byte
// behind a block and to eight bytes before it.
class exact_block {
 public:
  exact_block() = default;
  exact_block(int64_t bytes, bool at_end) : size_(bytes), pages_((bytes + guarded_pages::page - 1) / guarded_pages::page) {
    start_ = guarded_pages::take(pages_);
    front_ = at_end ? pages_ * guarded_pages::page - bytes : 0;
#if defined(ASAN_POISON_MEMORY_REGION)
    ASAN_POISON_MEMORY_REGION(start_, size_t(front_));
    ASAN_POISON_MEMORY_REGION(data() + size_, size_t(pages_ * guarded_pages::page - front_ - size_));
#endif
    fill();
  }
  exact_block(exact_block&& other) { *this = std::move(other); }
  exact_block& operator=(exact_block&& other) {
    std::swap(start_, other.start_), std::swap(size_, other.size_);
    std::swap(front_, other.front_), std::swap(pages_, other.pages_);
    return *this;
  }
  ~exact_block() {
    if (!start_) return;
#if defined(ASAN_POISON_MEMORY_REGION)
    ASAN_UNPOISON_MEMORY_REGION(start_, size_t(pages_ * guarded_pages::page));
#endif
    guarded_pages::give_back(start_, pages_);
  }

  char* data() const { return start_ + front_; }
  int64_t size() const { return size_; }
  void fill() {
    if (size_ > 0) std::memset(data(), 0xff, size_t(size_));
  }
  std::vector<char> bytes() const { return std::vector<char>(data(), data() + size_); }

 private:
  char* start_ = nullptr;
  int64_t size_ = 0, front_ = 0, pages_ = 0;
};

struct layout_choice {
  bool may_repeat;    // zero strides: inputs only
  bool last_is_dense;  // the last axis keeps stride 1
  double repeat = 0.08, reverse = 0.15, pad = 0.3;
};

// Four axes, (batch, head, row, d) or (batch, head, query, key), with drawn strides: in any order in memory, padded,
// reversed, repeated.
class strided_array {
 public:
  strided_array() = default;
  strided_array(random_source& random, element type_, int64_t item_bytes, std::vector<int64_t> shape_, layout_choice choice)
      : type(type_), shape(std::move(shape_)), stride(shape.size(), 0), item_bytes_(item_bytes) {
    std::vector<size_t> order(shape.size());
    std::iota(order.rbegin(), order.rend(), size_t(0));  // fastest first: C order before the shuffle
    if (choice.last_is_dense) {
      std::vector<size_t> others(order.begin() + 1, order.end());
      if (random.chance(0.5)) random.shuffle(others);
      std::copy(others.begin(), others.end(), order.begin() + 1);
    } else if (random.chance(0.5)) {
      random.shuffle(order);
    }
    int64_t step = 1, low = 0, high = 0;
    bool empty = false;
    for (const size_t axis : order) {
      const bool dense = choice.last_is_dense && axis + 1 == shape.size();
      empty |= shape[axis] == 0;
      int64_t s = step;
      if (!dense && choice.may_repeat && random.chance(choice.repeat)) {
        s = 0;
      } else {
        step = step * (shape[axis] > 0 ? shape[axis] : 1) + (random.chance(choice.pad) ? random.between(1, 3) : 0);
        if (!dense && random.chance(choice.reverse)) s = -s;
      }
      stride[axis] = s;
      const int64_t reach = s * (shape[axis] - 1);
      (reach < 0 ? low : high) += empty ? 0 : reach;
    }
    block = exact_block(empty ? 0 : (high - low + 1) * item_bytes, random.chance(0.5));
    origin_ = empty ? 0 : -low;
    for (int64_t b = 0; b < shape[0]; ++b) batch_offset.push_back(b * stride[0]);
    if (random.chance(0.3)) random.shuffle(batch_offset);  // several leading axes need not follow one stride
    batch_offset.shrink_to_fit();
  }

  char* at(std::initializer_list<int64_t> index) const {
    const int64_t* i = index.begin();
    const int64_t offset = origin_ + batch_offset[size_t(i[0])] + i[1] * stride[1] + i[2] * stride[2] + i[3] * stride[3];
    return block.data() + offset * item_bytes_;
  }
  exact get(std::initializer_list<int64_t> index) const { return read_number(type, at(index)); }
  void set(std::initializer_list<int64_t> index, exact x) { write_number(type, x, at(index)); }
  char* data() const { return block.data() + origin_ * item_bytes_; }

  // Calls visit(index) for every index, C order.
  template <typename visitor>
  void each(visitor visit) const {
    for (int64_t a = 0; a < shape[0]; ++a)
      for (int64_t b = 0; b < shape[1]; ++b)
        for (int64_t c = 0; c < shape[2]; ++c)
          for (int64_t d = 0; d < shape[3]; ++d) visit(a, b, c, d);
  }

  // Whether every byte that belongs to no element is as it was.
  bool gaps_untouched() const {
    std::vector<char> bytes = block.bytes();
    each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
      std::memset(bytes.data() + (at({a, b, c, d}) - block.data()), 0xff, size_t(item_bytes_));
    });
    for (const char byte : bytes)
      if (byte != char(0xff)) return false;
    return true;
  }

  rootdk::rows_view rows() const { return {data(), batch_offset.data(), stride[1], stride[2]}; }
  rootdk::pairs_view pairs() const { return {data(), batch_offset.data(), stride[1], stride[2], stride[3]}; }
  std::string text() const {
    std::string s = "strides (";
    for (const int64_t x : stride) s += std::to_string(x) + " ";
    s.back() = ')';
    if (!batch_offset.empty() && batch_offset[0] != 0) s += " batches shuffled";
    return s;
  }

  element type = element::float32;
  std::vector<int64_t> shape, stride, batch_offset;
  exact_block block;

 private:
  int64_t origin_ = 0, item_bytes_ = 0;
};

}  // namespace fuzz
