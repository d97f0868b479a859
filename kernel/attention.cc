// Which instruction set runs, and how the work is handed to the threads.
#include "attention.h"

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "cpu.h"
#include "interruption.h"
#include "pool.h"
#include "segments.h"
#include "visibility.h"
#include "waves.h"

namespace rootdk {

#if defined(__x86_64__)
#if defined(ROOTDK_AMX)  // the compiler supports it
namespace amx {
extern const kernel_target target;
}
#endif
namespace avx512 {
extern const kernel_target target;
}
namespace avx2 {
extern const kernel_target target;
}
#elif defined(__aarch64__)
namespace neon {
extern const kernel_target target;
}
#endif
namespace plain {
extern const kernel_target target;
}

std::vector<const kernel_target*> available_targets() {
  std::vector<const kernel_target*> found;
#if defined(__x86_64__)
#if defined(ROOTDK_AMX)
  if (has_amx()) found.push_back(&amx::target);
#endif
  if (has_avx512()) found.push_back(&avx512::target);
  if (has_avx2()) found.push_back(&avx2::target);
#elif defined(__aarch64__)
  found.push_back(&neon::target);
#endif
  found.push_back(&plain::target);
  return found;
}

static std::atomic<const kernel_target*>& chosen_target() {
  static std::atomic<const kernel_target*> chosen{available_targets().front()};
  return chosen;
}

const kernel_target& current_target() { return *chosen_target().load(std::memory_order_relaxed); }

bool set_current_target(const std::string& name) {
  for (const kernel_target* target : available_targets())
    if (name == target->name) {
      chosen_target().store(target, std::memory_order_relaxed);
      return true;
    }
  return false;
}

namespace {

// Kept by each thread between calls, so that a small call does not pay for fresh pages; a very large one gives its
// memory back.
class thread_scratch {
 public:
  void swap(thread_scratch& other) {
    std::swap(buffer_, other.buffer_);
    std::swap(size_, other.size_);
  }
  void* get(int64_t bytes) {
    if (bytes > size_) {
      buffer_.reset();
      size_ = 0;
      buffer_.reset(::operator new(size_t(bytes), std::align_val_t(64)));
      size_ = bytes;
    }
    return buffer_.get();
  }
  void shrink() {
    if (size_ > keep_bytes) buffer_.reset(), size_ = 0;
  }

 private:
  static constexpr int64_t keep_bytes = int64_t(16) << 20;
  struct release {
    void operator()(void* p) const { ::operator delete(p, std::align_val_t(64)); }
  };
  std::unique_ptr<void, release> buffer_;
  int64_t size_ = 0;
};

thread_local thread_scratch scratch;

// Below this many multiply-adds, waking a second thread costs more than it brings.
constexpr double serial_work = 400e3;

int threads_for(const attention_problem& problem) {
  const double rows = double(problem.pairs()) * double(problem.group() * problem.n_query);
  const double work = rows * double(problem.n_key) * double(problem.d_k + problem.d_v);
  return work < serial_work ? 1 : num_threads();
}

void in_parallel(const attention_problem& problem, int64_t count, const std::function<void(int64_t)>& body) {
  parallel_for(count, threads_for(problem), body, problem.team, problem.stop);
  // The call was given up while this thread waited for the last steps of the others.
  if (problem.stop && problem.stop->given_up()) throw call_given_up();
}

void run(const attention_problem& problem, const kernel_pass& pass) {
  thread_scratch shared;
  void* shared_buffer = shared.get(pass.shared_bytes);
  in_parallel(problem, pass.items, [&](int64_t item) {
    pass.item(problem, item, scratch.get(pass.scratch_bytes), shared_buffer);
    scratch.shrink();
  });
  in_parallel(problem, pass.merges, [&](int64_t merge) {
    between_steps(problem);
    pass.merge(problem, merge, shared_buffer);
  });
}

// The problem together with what its rows see, which is found here.
class seen_problem {
 public:
  explicit seen_problem(const attention_problem& problem) : problem_(problem) {
    if (segment_rows::needed(problem)) {
      segments_.emplace(problem);
      in_parallel(problem, problem.batch, [&](int64_t batch) {
        between_steps(problem);
        segments_->scan(batch);
      });
      problem_.segments = &*segments_;
    }
    if (!visibility::needed(problem)) return;
    seen_.emplace(problem);
    in_parallel(problem, seen_->scans(), [&](int64_t item) {
      between_steps(problem);
      seen_->scan(item);
    });
    problem_.seen = &*seen_;
  }
  const attention_problem& get() const { return problem_; }

 private:
  attention_problem problem_;
  std::optional<visibility> seen_;
  std::optional<segment_rows> segments_;
};

// One wave after the other, each a backward pass over its own pairs.
void run_waves(attention_problem problem, const kernel_target& target) {
  for (const std::vector<int64_t>& wave : bias_waves(problem)) {
    problem.pair_list = wave.data(), problem.pair_list_size = int64_t(wave.size());
    run(problem, target.backward(problem));
  }
}

}  // namespace

bool between_steps(const attention_problem& problem) {
  interruption* const stop = problem.stop;
  if (!stop) return false;
  const bool asks = stop->on_the_calling_thread() && stop->due();
  if (asks) {
    thread_scratch of_this_item;  // the caller may make a call of its own, on this thread, and must not get this item's memory
    of_this_item.swap(scratch);
    stop->ask();
    of_this_item.swap(scratch);
  }
  if (stop->given_up()) throw call_given_up();
  return asks;
}

void attention_forward(const attention_problem& given) {
  if (given.rows() == 0) return;
  const seen_problem seen(given);
  run(seen.get(), current_target().forward(seen.get()));
}

void attention_weights(const attention_problem& given) {
  if (given.rows() == 0) return;
  const seen_problem seen(given);
  run(seen.get(), current_target().weights(seen.get()));
}

void attention_tangent(const attention_problem& given) {
  if (given.rows() == 0) return;
  const seen_problem seen(given);
  run(seen.get(), current_target().tangent(seen.get()));
}

void attention_read(const attention_problem& given) {
  attention_problem problem = given;
  // Without columns nothing of a value is read and nothing of an output written, wherever they lie.
  problem.value = problem.key, problem.out = problem.query, problem.d_v = 0;
  problem.dropout = 0, problem.row_state = nullptr, problem.only_reads = true;
  attention_forward(problem);
}

void attention_backward(const attention_problem& given) {
  const kernel_target& target = current_target();
  const seen_problem seen(given);
  const attention_problem& problem = seen.get();
  if (!problem.d_bias.data) return run(problem, target.backward(problem));
  bias_copies copies(problem);
  if (!copies.useful()) return run_waves(problem, target);
  attention_problem on_copies = problem;
  on_copies.d_bias = copies.view();
  run_waves(on_copies, target);
  copies.merge();
}

}  // namespace rootdk
