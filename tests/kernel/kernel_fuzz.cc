// Random problems through the kernel, on every instruction set that this CPU can run, against the definition.
//
//   kernel_fuzz [count] [seed] [target, or all] [processes]
//
// Problem number i is drawn from seed + i alone: `kernel_fuzz 1 <seed of the problem>` repeats one that failed.
// The arrays live in blocks of exactly their size beside pages that nobody may touch; AddressSanitizer does the rest
// (make sanitize).
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <string>

#include "fuzz/definition.h"
#include "pool.h"

namespace fuzz {
namespace {

struct tally {
  int64_t numbers = 0, loose = 0;  // loose: the bound is as large as the number itself
  exact worst = 0, worst_half = 0;  // largest error, as a part of what was allowed; half types may round to the very edge
};

// An expected number that is not finite must come out not finite; a finite one within its bound.
bool agrees(exact got, const bounded_number& want, const precision& type, tally& counts) {
  if (!std::isfinite(want.value)) return !std::isfinite(got);
  if (!(std::fabs(want.value) + want.bound < type.largest)) return true;  // may overflow, or nothing can be said
  ++counts.numbers;
  if (want.bound >= std::fabs(want.value) && want.value != 0) ++counts.loose;
  const exact error = std::fabs(got - want.value);
  exact& worst = type.unit > 1e-6L ? counts.worst_half : counts.worst;
  if (want.bound > 0 && error <= want.bound) worst = std::max(worst, error / want.bound);
  return error <= want.bound;
}

std::string mismatch(const char* name, const std::string& index, exact got, const bounded_number& want) {
  char text[256];
  std::snprintf(text, sizeof text, "%s[%s] is %.9Lg, expected %.9Lg within %.3Lg", name, index.c_str(), got, want.value,
                want.bound);
  return text;
}

std::string check_rows(const char* name, const strided_array& got, const std::vector<bounded_number>& want, tally& counts) {
  const precision type = stored_precision(got.type);
  std::string failure;
  size_t at = 0;
  got.each([&](int64_t b, int64_t h, int64_t r, int64_t d) {
    const exact x = got.get({b, h, r, d});
    if (!agrees(x, want[at], type, counts) && failure.empty()) {
      std::ostringstream index;
      index << b << "," << h << "," << r << "," << d;
      failure = mismatch(name, index.str(), x, want[at]);
    }
    ++at;
  });
  if (failure.empty() && !got.gaps_untouched()) failure = std::string(name) + ": wrote between its rows";
  return failure;
}

std::string check_reading(const random_problem& p, const expectation& want, tally& counts) {
#define NAME_OF_FIELD(name) #name,
  const char* const names[] = {ROOTDK_READING_FIELDS(NAME_OF_FIELD)};
#undef NAME_OF_FIELD
  const int64_t rows = p.facts.rows(), bytes = rootdk::element_bytes(p.real());
  const precision real = compute_precision(p.facts.type);
  for (int64_t row = 0; row < rows; ++row)
    if (p.facts.keys[row] != want.keys[size_t(row)])
      return "keys[row " + std::to_string(row) + "] is " + std::to_string(p.facts.keys[row]) + ", expected " +
             std::to_string(want.keys[size_t(row)]);
  for (int64_t at = 0; at < rootdk::reading_fields * rows; ++at) {
    const exact x = read_number(p.real(), p.reading.data() + at * bytes);
    const bounded_number& number = want.reading[size_t(at)];
    const bool same_infinity = !std::isinf(number.value) || x == number.value;
    if (!same_infinity || !agrees(x, number, real, counts))
      return mismatch(names[at / rows], "row " + std::to_string(at % rows), x, number);
  }
  return "";
}

std::string check_slopes(const random_problem& p, const expectation& want, tally& counts) {
  const int64_t bytes = rootdk::element_bytes(p.real());
  for (size_t at = 0; at < want.d_alibi.size(); ++at) {
    const exact x = read_number(p.real(), p.d_alibi.data() + int64_t(at) * bytes);
    if (!agrees(x, want.d_alibi[at], compute_precision(p.facts.type), counts))
      return mismatch("d_alibi", std::to_string(at), x, want.d_alibi[at]);
  }
  return "";
}

void run_kernel(random_problem& p) {
  for (strided_array* a : {&p.out, &p.d_query, &p.d_key, &p.d_value, &p.moved_out, &p.out_again})
    if (a->block.size()) a->block.fill();
  for (exact_block* block : {&p.row_state, &p.reading, &p.keys, &p.d_alibi})
    if (block->size()) block->fill();
  if (p.facts.d_bias.data) {  // added to: starts at zero
    p.d_bias.block.fill();
    p.d_bias.each([&](int64_t b, int64_t h, int64_t i, int64_t j) { p.d_bias.set({b, h, i, j}, 0); });
  }
  if (p.facts.weights.data) {
    p.weights.block.fill();
    p.weights.each([&](int64_t b, int64_t h, int64_t i, int64_t j) { p.weights.set({b, h, i, j}, 0); });
  }
  rootdk::attention_forward(p.facts);
  if (p.facts.weights.data) rootdk::attention_weights(p.facts);
  if (p.with_backward) rootdk::attention_backward(p.facts);
  if (p.with_tangent) rootdk::attention_tangent(p.moved);
}

// The same Reading without values.
std::string check_read(const random_problem& p, const expectation& want, tally& counts) {
  const auto bytes = [&] {
    return std::string(p.reading.data(), size_t(p.reading.size())) + std::string(p.keys.data(), size_t(p.keys.size()));
  };
  const std::string measured = bytes();
  rootdk::attention_read(p.facts);
  if (!(p.facts.dropout > 0) && bytes() != measured) return "read: not the bits of measure";
  const std::string failure = check_reading(p, want, counts);
  return failure.empty() ? "" : "read: " + failure;
}

std::string results(const random_problem& p) {
  std::string all;
  for (const strided_array* a : {&p.out, &p.d_query, &p.d_key, &p.d_value, &p.moved_out, &p.out_again})
    if (a->block.size()) all.append(a->block.data(), size_t(a->block.size()));
  for (const exact_block* block : {&p.row_state, &p.reading, &p.keys, &p.d_bias.block, &p.weights.block, &p.d_alibi})
    all.append(block->data(), size_t(block->size()));
  return all;
}

std::string inputs(const random_problem& p) {
  std::string all;
  for (const strided_array* a :
       {&p.query, &p.key, &p.value, &p.d_out, &p.mask, &p.bias, &p.moved_query, &p.moved_key, &p.moved_value, &p.moved_bias})
    if (a->block.size()) all.append(a->block.data(), size_t(a->block.size()));
  return all;
}

// Empty when all is well, else what is wrong.
std::string check_target(random_problem& p, const expectation& want, tally& counts) {
  const std::string before = inputs(p);
  rootdk::set_num_threads(p.threads);
  run_kernel(p);
  std::string failure = check_rows("out", p.out, want.out, counts);
  if (failure.empty() && p.facts.reading) failure = check_reading(p, want, counts);
  if (failure.empty() && p.facts.weights.data) failure = check_rows("weights", p.weights, want.weights, counts);
  if (failure.empty() && p.with_backward) {
    failure = check_rows("d_query", p.d_query, want.d_query, counts);
    if (failure.empty()) failure = check_rows("d_key", p.d_key, want.d_key, counts);
    if (failure.empty()) failure = check_rows("d_value", p.d_value, want.d_value, counts);
    if (failure.empty() && p.facts.d_alibi) failure = check_slopes(p, want, counts);
    if (failure.empty() && p.facts.d_bias.data) failure = check_rows("d_bias", p.d_bias, want.d_bias, counts);
  }
  if (failure.empty() && p.with_tangent) failure = check_rows("moved_out", p.moved_out, want.moved_out, counts);
  if (failure.empty() && p.with_tangent && p.moved.out.data) failure = check_rows("out_again", p.out_again, want.out, counts);
  if (failure.empty() && p.facts.reading) failure = check_read(p, want, counts);
  if (failure.empty() && inputs(p) != before) failure = "an input was written to";
  if (!failure.empty() || p.seed % 4 != 0) return failure;
  run_kernel(p);
  const std::string once = results(p);
  rootdk::set_num_threads(p.threads % 3 + 1);
  run_kernel(p);
  return results(p) == once ? "" : "not bitwise the same on another number of threads";
}

// The amx target multiplies half types by tiles.
expectation expected_of(const std::string& target, const random_problem& p, const expectation& want) {
  expectation here = want;
  if (target == "amx" && rootdk::element_bytes(p.facts.type) == 2)
    for (bounded_number& x : here.out) x.bound += x.by_tiles;
  return here;
}

typedef std::map<std::string, tally> tallies;  // by target

bool passes(uint64_t seed, const std::vector<std::string>& targets, tallies& counts) {
  const std::unique_ptr<random_problem> p = draw_problem(seed);
  const expectation want = define(*p);
  for (const std::string& target : targets) {
    rootdk::set_current_target(target);
    const std::string failure = check_target(*p, expected_of(target, *p, want), counts[target]);
    if (failure.empty()) continue;
    std::printf("FAILED on %s: %s\n%s  again: kernel_fuzz 1 %" PRIu64 " %s\n\n", target.c_str(), failure.c_str(),
                describe(*p).c_str(), seed, target.c_str());
    return false;
  }
  return true;
}

// What one process has done so far, in memory that the first one sees.
struct progress {
  static constexpr int most_targets = 8;
  std::atomic<int64_t> done, failed;
  std::atomic<uint64_t> seed;  // of the problem at hand
  int64_t numbers[most_targets], loose[most_targets];
  double worst[most_targets], worst_half[most_targets];
};

// One cause tends to fail many problems.
constexpr int64_t most_failures = 10;

// Every `processes`-th problem, beginning with the `first`.
void work(int64_t first, int64_t processes, int64_t count, uint64_t seed, const std::vector<std::string>& targets,
          progress& told) {
  tallies counts;
  for (int64_t i = first; i < count && told.failed < most_failures; i += processes) {
    told.seed = seed + uint64_t(i);
    if (!passes(told.seed, targets, counts)) ++told.failed;
    ++told.done;
  }
  for (size_t t = 0; t < targets.size(); ++t) {
    const tally& here = counts[targets[t]];
    told.numbers[t] = here.numbers, told.loose[t] = here.loose;
    told.worst[t] = double(here.worst), told.worst_half[t] = double(here.worst_half);
  }
}

}  // namespace
}  // namespace fuzz

int main(int argc, char** argv) {
  const int64_t count = argc > 1 ? std::strtoll(argv[1], nullptr, 10) : 100000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const std::string wanted = argc > 3 ? argv[3] : "all";
  const int64_t processes = argc > 4 ? std::strtoll(argv[4], nullptr, 10) : 1;
  std::vector<std::string> targets;
  for (const rootdk::kernel_target* target : rootdk::available_targets())
    if (wanted == "all" || target->name == wanted) targets.push_back(target->name);
  if (count < 1 || processes < 1 || targets.empty()) {
    std::fprintf(stderr,
                 "usage: kernel_fuzz [count] [seed] [target] [processes]; the target must be one that this CPU can run\n");
    return 2;
  }
  std::printf("seed %" PRIu64 ", %" PRId64 " problems on", seed, count);
  for (const std::string& target : targets) std::printf(" %s", target.c_str());
  std::printf(", in %" PRId64 " processes\n", processes);
  std::fflush(stdout);

  const auto begin = std::chrono::steady_clock::now();
  void* const shared =
      mmap(nullptr, size_t(processes) * sizeof(fuzz::progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) std::abort();
  fuzz::progress* const told = static_cast<fuzz::progress*>(shared);  // the system hands it out as zeros
  std::vector<pid_t> children;
  for (int64_t i = 0; i < processes; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      fuzz::work(i, processes, count, seed, targets, told[i]);
      std::fflush(stdout);
      _exit(0);
    }
    if (child < 0) std::abort();
    children.push_back(child);
  }

  int64_t done = 0, failed = 0, died = 0;
  for (int64_t i = 0; i < processes; ++i) {
    int status = 0;
    waitpid(children[size_t(i)], &status, 0);
    done += told[i].done, failed += told[i].failed;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    ++died;
    std::printf("DIED (%s %d)  again: kernel_fuzz 1 %" PRIu64 " %s\n", WIFSIGNALED(status) ? "signal" : "exit code",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), told[i].seed.load(), wanted.c_str());
  }
  if (done < count && !died) std::printf("stopped: enough failed to look at\n");
  for (size_t t = 0; t < targets.size(); ++t) {
    int64_t numbers = 0, loose = 0;
    double worst = 0, worst_half = 0;
    for (int64_t i = 0; i < processes; ++i) {
      numbers += told[i].numbers[t], loose += told[i].loose[t];
      worst = std::max(worst, told[i].worst[t]), worst_half = std::max(worst_half, told[i].worst_half[t]);
    }
    std::printf("%-7s %" PRId64
                " numbers compared; largest error %.2f of its bound, %.2f where it is stored as a half type; "
                "%.1f %% with a bound above the number itself\n",
                targets[t].c_str(), numbers, worst, worst_half, 100.0 * double(loose) / double(numbers ? numbers : 1));
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  std::printf("%" PRId64 " passed, %" PRId64 " failed, %" PRId64 " died, in %.0f s\n", done - failed, failed, died,
              taken.count());
  return failed || died ? 1 : 0;
}
