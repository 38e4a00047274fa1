// The operations of shouter.tensorflow and their kernels for CPUs: they submit their tensors to the library under a name, and wait for no other.
//
// shouter/tensorflow/_kernels.py compiles it against the headers of the installed TensorFlow, and sets `submit` and `refuse` before an operation runs.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/util/overflow.h"

namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::DataType;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// As bindings/python/src/named.rs has it.
struct Request {
  const char* name;
  const char* kind;
  const char* op;
  const char* dtype;
  uint32_t root;
  bool is_fixed;
  bool is_awaited;
  int64_t run;
  const void* input;
  size_t input_bytes;
  void* output;
  size_t output_bytes;
  const uint64_t* given;
  size_t given_count;
  const uint64_t* taken;
  size_t taken_count;
};

using Done = void (*)(void* context, int32_t code, const char* text);
using Submit = void (*)(int64_t group, const Request* request, Done done, void* context);
using Refuse = void (*)(int64_t group, const char* name, const char* why, bool is_awaited, int64_t run);

Submit submit = nullptr;
Refuse refuse = nullptr;

// The library's name of an element type; null for one that it does not have.
const char* NameOf(DataType type) {
  switch (type) {
    case tensorflow::DT_BOOL: return "bool";
    case tensorflow::DT_UINT8: return "uint8";
    case tensorflow::DT_INT8: return "int8";
    case tensorflow::DT_UINT16: return "uint16";
    case tensorflow::DT_INT16: return "int16";
    case tensorflow::DT_UINT32: return "uint32";
    case tensorflow::DT_INT32: return "int32";
    case tensorflow::DT_UINT64: return "uint64";
    case tensorflow::DT_INT64: return "int64";
    case tensorflow::DT_HALF: return "float16";
    case tensorflow::DT_BFLOAT16: return "bfloat16";
    case tensorflow::DT_FLOAT8_E4M3FN: return "float8_e4m3fn";
    case tensorflow::DT_FLOAT8_E5M2: return "float8_e5m2";
    case tensorflow::DT_FLOAT: return "float32";
    case tensorflow::DT_DOUBLE: return "float64";
    case tensorflow::DT_COMPLEX64: return "complex64";
    case tensorflow::DT_COMPLEX128: return "complex128";
    default: return nullptr;
  }
}

// One operation under way: it keeps its tensors until its end.
struct Flight {
  OpKernelContext* context;
  AsyncOpKernel::DoneCallback done;
  Tensor input, output;
};

void Ended(void* context, int32_t code, const char* text) {
  auto* flight = static_cast<Flight*>(context);
  if (code != 0) flight->context->SetStatus(absl::Status(static_cast<absl::StatusCode>(code), text));
  auto done = std::move(flight->done);
  delete flight;
  done();
}

class Collective : public AsyncOpKernel {
 public:
  Collective(OpKernelConstruction* construction, const char* kind) : AsyncOpKernel(construction), kind_(kind) {
    OP_REQUIRES_OK(construction, construction->GetAttr("tensor_name", &name_));
    OP_REQUIRES_OK(construction, construction->GetAttr("group", &group_));
    OP_REQUIRES_OK(construction, construction->GetAttr("is_fixed", &is_fixed_));
    if (construction->HasAttr("rank")) OP_REQUIRES_OK(construction, construction->GetAttr("rank", &rank_));
    if (construction->HasAttr("size")) OP_REQUIRES_OK(construction, construction->GetAttr("size", &size_));
    if (construction->HasAttr("op")) OP_REQUIRES_OK(construction, construction->GetAttr("op", &op_));
    if (construction->HasAttr("root")) OP_REQUIRES_OK(construction, construction->GetAttr("root", &root_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override { Submitted(context, std::move(done), false); }

  // An eager call: the thread waits for this operation, and for nothing else.
  void Compute(OpKernelContext* context) override {
    absl::Notification ended;
    Submitted(context, [&ended] { ended.Notify(); }, true);
    ended.WaitForNotification();
  }

 private:
  void Submitted(OpKernelContext* context, DoneCallback done, bool is_awaited) {
    const Tensor& input = context->input(0);
    const char* dtype = NameOf(input.dtype());
    OP_REQUIRES_ASYNC(context, dtype != nullptr, absl::InvalidArgumentError("'" + name_ + "': elements of a type that the library does not have"), done);
    std::vector<uint64_t> given, taken;
    Tensor* output = nullptr;
    absl::Status made = Output(context, input, &given, &taken, &output);
    // The other ranks' operation fails, too. Counts that do not fit fail on all ranks by themselves.
    if (!made.ok() && context->num_inputs() == 1) refuse(group_, name_.c_str(), std::string(made.message()).c_str(), is_awaited, context->step_id());
    OP_REQUIRES_OK_ASYNC(context, made, done);
    // A broadcast has one tensor in the library.
    if (kind_ == "broadcast" && rank_ == root_ && output->data() != input.data()) {
      std::memcpy(output->data(), input.data(), input.TotalBytes());
    }
    auto* flight = new Flight{context, std::move(done), input, *output};
    // Ranks that do not divide the rows have counts in the library.
    const std::string kind = kind_ == "reduce-scatter" && !given.empty() ? kind_ + "-v" : kind_;
    Request request{name_.c_str(), kind.c_str(),         op_.c_str(),    dtype,        static_cast<uint32_t>(root_), is_fixed_, is_awaited, context->step_id(),
                    input.data(),  input.TotalBytes(),   output->data(), output->TotalBytes(),
                    given.data(),  given.size(),         taken.data(),   taken.size()};
    submit(group_, &request, Ended, flight);
  }

  // The output, and the counts of elements where blocks differ.
  absl::Status Output(OpKernelContext* context, const Tensor& input, std::vector<uint64_t>* given, std::vector<uint64_t>* taken, Tensor** output) {
    TensorShape shape = input.shape();
    if (kind_ == "all-reduce" || kind_ == "broadcast") return context->forward_input_or_allocate_output({0}, 0, shape, output);
    if (shape.dims() == 0) return absl::InvalidArgumentError("'" + name_ + "': " + kind_ + " of a scalar; give it an axis");
    const int64_t rows = shape.dim_size(0);
    int64_t rows_of_output = rows;
    if (kind_ == "all-gather") {
      rows_of_output = tensorflow::MultiplyWithoutOverflow(rows, size_);
    } else if (kind_ == "reduce-scatter") {
      // The first ranks have one row more.
      const int64_t each = rows / size_, more = rows % size_;
      rows_of_output = each + (rank_ < more);
      if (more > 0) {
        const int64_t row = input.NumElements() / rows;
        for (int64_t at = 0; at < size_; ++at) given->push_back((each + (at < more)) * row);
        taken->push_back(rows_of_output * row);
      }
    } else if (kind_ == "all-to-all") {
      if (rows % size_ != 0) return absl::InvalidArgumentError(Rows(rows) + "; their number has to be a multiple of the " + std::to_string(size_) + " ranks");
    } else {
      TensorShape row = shape;
      if (!row.RemoveDimWithStatus(0).ok()) return TooMany();
      if (kind_ == "all-to-all-v") {
        int64_t all = 0;
        TF_RETURN_IF_ERROR(Counts(context->input(2), row.num_elements(), true, given, &all));
        if (all != rows) return absl::InvalidArgumentError(Rows(rows) + ", and the splits add up to " + std::to_string(all));
      } else {
        given->push_back(input.NumElements());
      }
      TF_RETURN_IF_ERROR(Counts(context->input(1), row.num_elements(), false, taken, &rows_of_output));
    }
    if (rows_of_output < 0 || !shape.SetDimWithStatus(0, rows_of_output).ok()) return TooMany();
    return context->allocate_output(0, shape, output);
  }

  absl::Status TooMany() const { return absl::InvalidArgumentError("'" + name_ + "': " + kind_ + " of more elements than a tensor can have"); }

  std::string Rows(int64_t rows) const { return "'" + name_ + "': " + kind_ + " of " + std::to_string(rows) + " rows"; }

  // Counts of elements, from those of rows, and the sum of those.
  absl::Status Counts(const Tensor& rows, int64_t row, bool is_own, std::vector<uint64_t>* counts, int64_t* all) const {
    *all = 0;
    if (rows.NumElements() != size_) return absl::InvalidArgumentError("'" + name_ + "': counts of " + std::to_string(rows.NumElements()) + " ranks, and there are " + std::to_string(size_));
    for (int64_t at = 0; at < size_; ++at) {
      const int64_t count = rows.flat<int64_t>()(at);
      if (count < 0 && is_own) return absl::InvalidArgumentError("'" + name_ + "': a count of " + std::to_string(count) + " rows for rank " + std::to_string(at));
      if (count < 0) return absl::InvalidArgumentError("'" + name_ + "': the splits or indices of rank " + std::to_string(at) + " do not fit its rows");
      const int64_t elements = tensorflow::MultiplyWithoutOverflow(count, row);
      *all = tensorflow::AddWithoutOverflow(*all, count);
      if (elements < 0 || *all < 0) return TooMany();
      counts->push_back(elements);
    }
    return absl::OkStatus();
  }

  std::string kind_, name_, op_ = "sum";
  int64_t group_ = 0, rank_ = 0, size_ = 0, root_ = 0;
  bool is_fixed_ = false;
};

absl::Status FirstAxis(InferenceContext* context, bool grows) {
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 1, &shape));
  int64_t size, rank;
  TF_RETURN_IF_ERROR(context->GetAttr("size", &size));
  TF_RETURN_IF_ERROR(context->GetAttr("rank", &rank));
  DimensionHandle rows = context->Dim(shape, 0);
  if (grows) {
    TF_RETURN_IF_ERROR(context->Multiply(rows, size, &rows));
  } else {
    const bool is_known = context->ValueKnown(rows);
    const int64_t all = is_known ? context->Value(rows) : 0;
    rows = is_known ? context->MakeDim(all / size + (rank < all % size)) : context->UnknownDim();
  }
  TF_RETURN_IF_ERROR(context->ReplaceDim(shape, 0, rows, &shape));
  context->set_output(0, shape);
  return absl::OkStatus();
}

absl::Status AnyRows(InferenceContext* context) {
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 1, &shape));
  TF_RETURN_IF_ERROR(context->ReplaceDim(shape, 0, context->UnknownDim(), &shape));
  context->set_output(0, shape);
  return absl::OkStatus();
}

}  // namespace

extern "C" void shouter_set_calls(void* submits, void* refuses) {
  submit = reinterpret_cast<Submit>(submits);
  refuse = reinterpret_cast<Refuse>(refuses);
}

// All are stateful, so they are neither run while a graph is optimised, nor left out, nor merged. Their communication is why TensorFlow passes
// their UnavailableError on.
#define SHOUTER_OP(NAME, PLACE)                                                          \
  REGISTER_OP(NAME)                                                                      \
      .Input("input: T")                                                                 \
      .Attr("T: type")                                                                   \
      .Attr("tensor_name: string").Attr("group: int") PLACE.Attr("is_fixed: bool").SetIsStateful().SetIsDistributedCommunication().Output("output: T")

// Each attribute takes an eager call time, and an all-reduce needs to know neither.
#define SHOUTER_PLACE .Attr("rank: int").Attr("size: int")

SHOUTER_OP("ShouterAllReduce", ).Attr("op: string").SetShapeFn(tensorflow::shape_inference::UnchangedShape);
SHOUTER_OP("ShouterBroadcast", SHOUTER_PLACE).Attr("root: int").SetShapeFn(tensorflow::shape_inference::UnchangedShape);
SHOUTER_OP("ShouterAllGather", SHOUTER_PLACE).SetShapeFn([](InferenceContext* context) { return FirstAxis(context, true); });
SHOUTER_OP("ShouterReduceScatter", SHOUTER_PLACE).Attr("op: string").SetShapeFn([](InferenceContext* context) { return FirstAxis(context, false); });
SHOUTER_OP("ShouterAllToAll", SHOUTER_PLACE).SetShapeFn(tensorflow::shape_inference::UnchangedShape);
SHOUTER_OP("ShouterAllGatherV", SHOUTER_PLACE).Input("rows: int64").SetShapeFn(AnyRows);
SHOUTER_OP("ShouterAllToAllV", SHOUTER_PLACE).Input("taken: int64").Input("given: int64").SetShapeFn(AnyRows);

#define SHOUTER_KERNEL(NAME, KIND)                                                                       \
  class NAME##Kernel : public Collective {                                                               \
   public:                                                                                               \
    explicit NAME##Kernel(OpKernelConstruction* construction) : Collective(construction, KIND) {}        \
  };                                                                                                     \
  REGISTER_KERNEL_BUILDER(Name("Shouter" #NAME).Device(tensorflow::DEVICE_CPU), NAME##Kernel)

SHOUTER_KERNEL(AllReduce, "all-reduce");
SHOUTER_KERNEL(Broadcast, "broadcast");
SHOUTER_KERNEL(AllGather, "all-gather");
SHOUTER_KERNEL(ReduceScatter, "reduce-scatter");
SHOUTER_KERNEL(AllToAll, "all-to-all");
SHOUTER_KERNEL(AllGatherV, "all-gather-v");
SHOUTER_KERNEL(AllToAllV, "all-to-all-v");
