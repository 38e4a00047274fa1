// The handler of shouter.jax's custom calls for XLA on CPUs: hands their buffers to the library.
//
// shouter/jax/_handler.py compiles it against the headers of the installed jaxlib, and sets `run` before a program is executed.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

// As bindings/python/src/xla.rs has it.
struct Part {
  const void* input;
  size_t input_bytes;
  void* output;
  size_t output_bytes;
  const char* dtype;
};

using Run = bool (*)(int64_t group, uint32_t rank, uint32_t size, const char* kind, const char* op, uint32_t root, const Part* parts, size_t count,
                     char* error, size_t room);

Run run = nullptr;

// The library's name of an element type; null for one that it does not have.
const char* NameOf(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::PRED: return "bool";
    case ffi::DataType::U8: return "uint8";
    case ffi::DataType::S8: return "int8";
    case ffi::DataType::U16: return "uint16";
    case ffi::DataType::S16: return "int16";
    case ffi::DataType::U32: return "uint32";
    case ffi::DataType::S32: return "int32";
    case ffi::DataType::U64: return "uint64";
    case ffi::DataType::S64: return "int64";
    case ffi::DataType::F16: return "float16";
    case ffi::DataType::BF16: return "bfloat16";
    case ffi::DataType::F32: return "float32";
    case ffi::DataType::F64: return "float64";
    case ffi::DataType::C64: return "complex64";
    case ffi::DataType::C128: return "complex128";
    case ffi::DataType::F8E4M3FN: return "float8_e4m3fn";
    case ffi::DataType::F8E5M2: return "float8_e5m2";
    default: return nullptr;
  }
}

// Argument and result 0 are the token that orders the calls.
ffi::Error Collective(std::string_view kind, std::string_view op, int64_t root, int64_t group, int64_t rank, int64_t size,
                      ffi::RemainingArgs args, ffi::RemainingRets rets) {
  std::vector<Part> parts;
  for (size_t at = 1; at < args.size(); ++at) {
    auto input = args.get<ffi::AnyBuffer>(at);
    auto output = rets.get<ffi::AnyBuffer>(at);
    if (!input.has_value() || !output.has_value()) return ffi::Error::Internal("a buffer is missing");
    const char* dtype = NameOf(input->element_type());
    if (dtype == nullptr) return ffi::Error::InvalidArgument("elements of a type that the library does not have");
    parts.push_back({input->untyped_data(), input->size_bytes(), (*output)->untyped_data(), (*output)->size_bytes(), dtype});
  }
  char error[4096];
  if (!run(group, static_cast<uint32_t>(rank), static_cast<uint32_t>(size), std::string(kind).c_str(), std::string(op).c_str(),
           static_cast<uint32_t>(root), parts.data(), parts.size(), error, sizeof error)) {
    return ffi::Error::Internal(error);
  }
  return ffi::Error::Success();
}

}  // namespace

extern "C" void shouter_set_run(void* address) { run = reinterpret_cast<Run>(address); }

XLA_FFI_DEFINE_HANDLER_SYMBOL(shouter_collective, Collective,
                              ffi::Ffi::Bind()
                                  .Attr<std::string_view>("kind")
                                  .Attr<std::string_view>("op")
                                  .Attr<int64_t>("root")
                                  .Attr<int64_t>("group")
                                  .Attr<int64_t>("rank")
                                  .Attr<int64_t>("size")
                                  .RemainingArgs()
                                  .RemainingRets());
