// The kernels' C interface for a caller on another kind of CPU: its commands come by the standard input, answers go by the
// standard output.
//
// take SIZE -> address; drop ADDRESS; write ADDRESS SIZE bytes; read ADDRESS SIZE -> bytes; call FUNCTION argument
// NUM_ARGUMENTS times -> result. Every command begins with three 64-bit numbers: which, then these two or zeros. Knows the
// functions' signatures; does not know what the memory holds, which the caller fills as for a call of its own.
#include <unistd.h>

#include <cstdio>

#include "api.cpp"

namespace {

enum Command : int64_t { kTake, kDrop, kWrite, kRead, kCall };
constexpr int64_t kMostArguments = 8;

using Arguments = int64_t[kMostArguments];

template <typename T>
T* at(int64_t address) { return reinterpret_cast<T*>(address); }

// Numbered as in library.py.
int64_t (*const kFunctions[])(const Arguments&) = {
    [](const Arguments& a) { return (int64_t)tm_engine_new(at<ModelConfig>(a[0])); },
    [](const Arguments& a) { return (int64_t)tm_engine_set(at<void>(a[0]), a[1], a[2], at<Tensor>(a[3]), a[4]); },
    [](const Arguments& a) { return (int64_t)tm_engine_memory(at<void>(a[0])); },
    [](const Arguments& a) { return tm_engine_memory_bytes(at<void>(a[0])); },
    [](const Arguments& a) { return tm_engine_block_elements(at<void>(a[0])); },
    [](const Arguments& a) { return (int64_t)tm_engine_step(at<void>(a[0]), at<Step>(a[1])); },
    [](const Arguments& a) { tm_engine_times(at<void>(a[0]), at<double>(a[1])); return int64_t{0}; },
    [](const Arguments& a) { tm_engine_set_way(at<void>(a[0]), a[1], a[2], a[3]); return int64_t{0}; },
    [](const Arguments& a) {
      tm_engine_draw(at<void>(a[0]), at<float>(a[1]), a[2], a[3], a[4], at<int32_t>(a[5]), at<Draw>(a[6]), at<int32_t>(a[7]));
      return int64_t{0};
    },
};

bool receive(void* to, int64_t size) {
  for (ssize_t got; size > 0; to = (char*)to + got, size -= got)
    if ((got = read(STDIN_FILENO, to, size)) <= 0) return false;
  return true;
}

bool send(const void* from, int64_t size) {
  for (ssize_t put; size > 0; from = (const char*)from + put, size -= put)
    if ((put = write(STDOUT_FILENO, from, size)) <= 0) return false;
  return true;
}

bool send(int64_t number) { return send(&number, sizeof number); }

bool call(int64_t function, int64_t count) {
  Arguments arguments = {};
  if (function < 0 || function >= (int64_t)std::size(kFunctions) || count > kMostArguments) return false;
  return receive(arguments, count * sizeof(int64_t)) && send(kFunctions[function](arguments));
}

bool obey(int64_t command, int64_t first, int64_t second) {
  switch (command) {
    case kTake: return send((int64_t)malloc(first));
    case kDrop: free(at<void>(first)); return true;
    case kWrite: return receive(at<void>(first), second);
    case kRead: return send(at<void>(first), second);
    case kCall: return call(first, second);
    default: return false;
  }
}

}  // namespace

int main() {
  for (int64_t command[3]; receive(command, sizeof command);)
    if (!obey(command[0], command[1], command[2])) return 1;
  return 0;
}
