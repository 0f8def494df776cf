#include <algorithm>
#include <cstdio>

#include <tapegrad/emulator/cublaslt_internal.h>

namespace simt::lt {
namespace {

constexpr auto F16 = CUDA_R_16F, BF16 = CUDA_R_16BF, F32 = CUDA_R_32F, F64 = CUDA_R_64F, I8 = CUDA_R_8I,
               I32 = CUDA_R_32I, E4 = CUDA_R_8F_E4M3, E5 = CUDA_R_8F_E5M2;

struct Types {
  cublasComputeType_t compute;
  cudaDataType scale, a, b, c, d;
  bool epilogues;
};
constexpr Types accepted[] = {
    {CUBLAS_COMPUTE_16F, F16, F16, F16, F16, F16, true},
    {CUBLAS_COMPUTE_32F, F32, BF16, BF16, BF16, BF16, true},
    {CUBLAS_COMPUTE_32F, F32, F16, F16, F16, F16, true},
    {CUBLAS_COMPUTE_32F, F32, BF16, BF16, F32, F32, true},
    {CUBLAS_COMPUTE_32F, F32, F16, F16, F32, F32, true},
    {CUBLAS_COMPUTE_32F, F32, F32, F32, F32, F32, true},
    {CUBLAS_COMPUTE_32F_FAST_TF32, F32, F32, F32, F32, F32, true},
    {CUBLAS_COMPUTE_32F_FAST_16F, F32, F32, F32, F32, F32, true},
    {CUBLAS_COMPUTE_32F_FAST_16BF, F32, F32, F32, F32, F32, true},
    {CUBLAS_COMPUTE_64F, F64, F64, F64, F64, F64, true},
    {CUBLAS_COMPUTE_32F, F32, I8, I8, F32, F32, false},
    {CUBLAS_COMPUTE_32I, I32, I8, I8, I32, I32, false},
    {CUBLAS_COMPUTE_32I, F32, I8, I8, I8, I8, false},
};
constexpr struct {
  cudaDataType c, d;
} accepted_fp8[] = {{BF16, BF16}, {F16, F16}, {F32, F32}, {BF16, E4}, {F16, E4}, {BF16, E5}, {F16, E5}};

std::optional<Refusal> invalid(std::string why) { return Refusal{CUBLAS_STATUS_INVALID_VALUE, std::move(why)}; }
std::optional<Refusal> unsupported(std::string why) { return Refusal{CUBLAS_STATUS_NOT_SUPPORTED, std::move(why)}; }
template <class... A> std::string text(const char* format, A... a) {
  char s[400];
  std::snprintf(s, sizeof s, format, a...);
  return s;
}

bool biased(std::uint32_t e) {
  return e == CUBLASLT_EPILOGUE_BIAS || e == CUBLASLT_EPILOGUE_RELU_BIAS || e == CUBLASLT_EPILOGUE_GELU_BIAS ||
         e == CUBLASLT_EPILOGUE_RELU_AUX_BIAS || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool sums(std::uint32_t e) {
  return e == CUBLASLT_EPILOGUE_DRELU_BGRAD || e == CUBLASLT_EPILOGUE_DGELU_BGRAD || e == CUBLASLT_EPILOGUE_BGRADA ||
         e == CUBLASLT_EPILOGUE_BGRADB;
}
bool has_aux(std::uint32_t e) { return e < 256 && e & 128; }
bool relu(std::uint32_t e) { return e < 256 && e & (2 | 8); }
bool known(std::uint32_t e) {
  static constexpr std::uint32_t all[] = {1, 2, 130, 4, 6, 134, 136, 152, 32, 160, 36, 164, 192, 208, 256, 512};
  return std::ranges::find(all, e) != std::end(all);
}

std::optional<Refusal> types(const Problem& p) {
  const auto [a, b, c, d] = std::array{p.a.type, p.b.type, p.c.type, p.d.type};
  if (p.fp8() || Problem::is_fp8(b)) {
    if (a == E5 && b == E5) return unsupported("e5m2 x e5m2: one operand must be e4m3");
    if (!Problem::is_fp8(a) || !Problem::is_fp8(b))
      return unsupported(text("fp8 only with fp8: A is %s, B is %s", name_of(a), name_of(b)));
    if (p.desc.compute != CUBLAS_COMPUTE_32F || p.desc.scale != F32)
      return unsupported("fp8 needs CUBLAS_COMPUTE_32F with scale type f32");
    for (auto& row : accepted_fp8)
      if (row.c == c && row.d == d && !(d == E5 && a == E4 && b == E4)) return {};
    return unsupported(text("fp8 has no D of %s with C of %s", name_of(d), name_of(c)));
  }
  for (const Types& t : accepted)
    if (t.compute == p.desc.compute && t.scale == p.desc.scale && t.a == a && t.b == b && t.c == c && t.d == d) {
      if (t.epilogues || p.desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return {};
      return unsupported(text("int8 has no epilogue, this is %u", p.desc.epilogue));
    }
  return unsupported(text("no product of A %s, B %s, C %s, D %s with compute type %d and scale type %s", name_of(a),
                          name_of(b), name_of(c), name_of(d), int(p.desc.compute), name_of(p.desc.scale)));
}

std::optional<Refusal> layouts(const Problem& p) {
  const Desc& o = p.desc;
  const auto rows = [](const Layout& l, int op) { return op == CUBLAS_OP_N ? l.rows : l.cols; };
  const auto cols = [](const Layout& l, int op) { return op == CUBLAS_OP_N ? l.cols : l.rows; };
  if (rows(p.a, o.trans_a) != p.m() || cols(p.b, o.trans_b) != p.n() || rows(p.b, o.trans_b) != p.k() ||
      p.c.rows != p.m() || p.c.cols != p.n())
    return invalid(text("sizes do not fit: op(A) %zu x %zu, op(B) %zu x %zu, C %zu x %zu, D %zu x %zu",
                        rows(p.a, o.trans_a), cols(p.a, o.trans_a), rows(p.b, o.trans_b), cols(p.b, o.trans_b),
                        p.c.rows, p.c.cols, p.d.rows, p.d.cols));
  const struct {
    char name;
    const Layout& l;
  } all[] = {{'A', p.a}, {'B', p.b}, {'C', p.c}, {'D', p.d}};
  for (auto& [name, l] : all) {
    if (!l.rows || !l.cols) return invalid(text("%c has size 0", name));
    if (l.rows > 0x7fffffff || l.cols > 0x7fffffff) return unsupported(text("a size of %c is above 2^31 - 1", name));
    if (l.order != CUBLASLT_ORDER_COL && l.order != CUBLASLT_ORDER_ROW)
      return unsupported(text("order %d of %c is not for compute capability 9.0", l.order, name));
    const std::uint64_t least = l.order == CUBLASLT_ORDER_COL ? l.rows : l.cols;
    if (l.ld < 0 || std::uint64_t(l.ld) < least)
      return invalid(text("leading dimension %lld of %c is below %llu", static_cast<long long>(l.ld), name,
                          static_cast<unsigned long long>(least)));
    if (l.batch < 1 || l.batch != p.d.batch)
      return invalid(text("batch count of %c is %d, of D %d", name, l.batch, p.d.batch));
    if (l.mode != p.d.mode) return invalid(text("batch modes of %c and D differ", name));
  }
  if (p.d.mode == CUBLASLT_BATCH_MODE_POINTER_ARRAY)
    return o.epilogue != CUBLASLT_EPILOGUE_DEFAULT ? unsupported("a batch by pointer arrays has no epilogue")
                                                   : unsupported("the emulator computes no batch by pointer arrays");
  const std::int64_t extent = (p.d.order == CUBLASLT_ORDER_COL ? std::int64_t(p.d.cols) : std::int64_t(p.d.rows)) - 1;
  if (p.d.batch > 1 && p.d.stride <= extent * p.d.ld) return invalid("the matrices of D overlap");
  return {};
}

std::optional<Refusal> epilogue(const Problem& p) {
  const Desc& o = p.desc;
  const std::uint32_t e = o.epilogue;
  if (!known(e)) return invalid(text("epilogue %u: not one of the library's combinations", e));
  if (e == CUBLASLT_EPILOGUE_BGRADA || e == CUBLASLT_EPILOGUE_BGRADB) {
    for (auto t : {p.a.type, p.b.type, p.d.type})
      if (t != F16 && t != BF16 && t != F32 && t != F64)
        return unsupported("BGRADA and BGRADB need f16, bf16, f32 or f64");
    if (p.d.order != CUBLASLT_ORDER_COL) return unsupported("BGRADA and BGRADB need D in column order");
    if (e == CUBLASLT_EPILOGUE_BGRADA && o.trans_a != CUBLAS_OP_N) return unsupported("BGRADA needs A not transposed");
    if (e == CUBLASLT_EPILOGUE_BGRADB && o.trans_b == CUBLAS_OP_N) return unsupported("BGRADB needs B transposed");
  }
  if (p.d.order == CUBLASLT_ORDER_ROW && (has_aux(e) || biased(e)))
    return unsupported("bias and auxiliary output need D in column order");
  if (has_aux(e) && relu(e) && (o.aux_ld <= 0 || o.aux_ld % 128 || o.aux_ld < std::int64_t(p.m())))
    return invalid(text("leading dimension %lld of RELU's bit mask: it must be a multiple of 128 and at least m",
                        static_cast<long long>(o.aux_ld)));
  if (has_aux(e) && !relu(e) && (o.aux_ld <= 0 || o.aux_ld % 8 || o.aux_ld < std::int64_t(p.m())))
    return invalid(text("leading dimension %lld of GELU's input: it must be a multiple of 8 and at least m",
                        static_cast<long long>(o.aux_ld)));
  if (has_aux(e) && relu(e)) return unsupported("the emulator computes no bit masks of RELU");
  if ((has_aux(e) || biased(e) || sums(e)) && p.d.batch > 1)
    return unsupported("the emulator computes bias and auxiliary output of one matrix only");
  if (o.bias_type >= 0 && o.bias_type != p.bias_type())
    return unsupported(text("bias of %s: it must be %s", name_of(cudaDataType(o.bias_type)), name_of(p.bias_type())));
  return {};
}

std::optional<Refusal> tn_only(const Problem& p, const char* what) {
  if (p.desc.trans_a != CUBLAS_OP_N && p.desc.trans_b == CUBLAS_OP_N && p.a.order == CUBLASLT_ORDER_COL &&
      p.b.order == CUBLASLT_ORDER_COL && p.d.order == CUBLASLT_ORDER_COL)
    return {};
  return unsupported(text("%s needs A transposed and B not (TN), in column order", what));
}

std::optional<Refusal> int8(const Problem& p) {
  if (auto no = tn_only(p, "int8")) return no;
  if (p.m() % 4 || p.k() % 4)
    return unsupported(text("int8 needs m and k in multiples of 4, they are %zu and %zu", p.m(), p.k()));
  if (p.a.ld % 4 || p.b.ld % 4 || p.c.ld % 4 || p.d.ld % 4)
    return unsupported("int8 needs leading dimensions in multiples of 4");
  if (p.n() > 65536) return unsupported(text("int8 with n = %zu: this version needs n of at most 65536", p.n()));
  const bool vector = p.desc.pointers == CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST;
  if (p.desc.scale_a || p.desc.scale_b || p.desc.scale_d) return unsupported("int8 has no scale pointers");
  if (p.d.type == F32 && p.desc.pointers > CUBLASLT_POINTER_MODE_DEVICE)
    return unsupported("int8 with an f32 result takes scalars only");
  if (p.desc.pointers > CUBLASLT_POINTER_MODE_DEVICE && !vector)
    return unsupported("int8 has the pointer modes HOST, DEVICE and ALPHA_DEVICE_VECTOR_BETA_HOST");
  return {};
}

std::optional<Refusal> fp8(const Problem& p) {
  const Desc& o = p.desc;
  if (auto no = tn_only(p, "fp8")) return no;
  if (p.m() % 16 || p.k() % 16)
    return unsupported(text("fp8 needs m and k in multiples of 16, they are %zu and %zu", p.m(), p.k()));
  if (p.a.ld % 16 || p.b.ld % 16 || std::size_t(p.d.ld) * bytes_of(p.d.type) % 16 ||
      std::size_t(p.c.ld) * bytes_of(p.c.type) % 16)
    return unsupported("fp8 needs leading dimensions in multiples of 16 bytes");
  const int ma = o.scale_mode_a, mb = o.scale_mode_b;
  const auto outer = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, vec = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
             block = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  for (int m : {ma, mb})
    if (m == CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3 || m == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0)
      return unsupported("scales of 16 or 32 elements are not for compute capability 9.0");
  if ((ma == outer) != (mb == outer)) return unsupported("OUTER_VEC_32F must be the scale mode of both operands");
  const bool blocks = ma == vec || ma == block || mb == vec || mb == block;
  if (blocks && ((ma != vec && ma != block) || (mb != vec && mb != block)))
    return unsupported("scales of 128 elements must be those of both operands");
  if (ma == block && mb == block) return unsupported("blocks of 128 x 128 on both operands: one must be VEC128_32F");
  if (blocks && (p.m() % 4 || p.n() % 4)) return unsupported("scales of 128 elements need m and n in multiples of 4");
  if (ma == outer && (p.m() % 4 || p.n() % 4)) return unsupported("OUTER_VEC_32F needs m and n in multiples of 4");
  if (blocks && o.epilogue != CUBLASLT_EPILOGUE_DEFAULT && o.epilogue != CUBLASLT_EPILOGUE_BIAS &&
      o.epilogue != CUBLASLT_EPILOGUE_DGELU)
    return unsupported("scales of 128 elements have the epilogues DEFAULT, BIAS and DGELU");
  if ((blocks || ma == outer) && (Problem::is_fp8(p.d.type) || o.scale_d))
    return unsupported("D of fp8, or scaled, needs scalar scales of A and B");
  if (o.scale_d && !Problem::is_fp8(p.d.type)) return unsupported("only D of fp8 has a scale");
  if ((blocks || ma == outer) && (!o.scale_a || !o.scale_b)) return invalid("scales of A and B are not set");
  return {};
}

bool aligned(const void* p, std::size_t to) { return reinterpret_cast<std::uintptr_t>(p) % to == 0; }

}  // namespace

cudaDataType Problem::bias_type() const {
  return !fp8() ? d.type : d.type == F16 || (is_fp8(d.type) && c.type == F16) ? F16 : BF16;
}

std::size_t bytes_of(cudaDataType t) {
  switch (t) {
    case F64: return 8;
    case F32:
    case I32: return 4;
    case F16:
    case BF16: return 2;
    default: return 1;
  }
}
const char* name_of(cudaDataType t) {
  switch (t) {
    case F64: return "f64";
    case F32: return "f32";
    case I32: return "i32";
    case F16: return "f16";
    case BF16: return "bf16";
    case I8: return "i8";
    case E4: return "e4m3";
    case E5: return "e5m2";
  }
  return "an unknown type";
}

std::optional<Refusal> refuses_problem(const Problem& p) {
  if (auto no = layouts(p)) return no;
  if (auto no = epilogue(p)) return no;
  if (auto no = types(p)) return no;
  if (p.int8())
    if (auto no = int8(p)) return no;
  if (p.fp8()) return fp8(p);
  if (p.desc.scale_a || p.desc.scale_b || p.desc.scale_d)
    return unsupported(text("scale pointers are for fp8, A is %s", name_of(p.a.type)));
  if (p.desc.pointers > CUBLASLT_POINTER_MODE_DEVICE && !p.int8())
    return unsupported("the emulator computes vectors of alpha for int8 only");
  return {};
}

std::optional<Refusal> refuses_operands(const Problem& p, const Operands& x) {
  const Desc& o = p.desc;
  if (!x.alpha || !x.beta) return invalid("alpha and beta must be given");
  const bool beta_on_host = o.pointers != CUBLASLT_POINTER_MODE_DEVICE;
  const double beta = beta_on_host ? scalar(o.scale, x.beta) : 1;
  if (!x.a || !x.b || !x.d) return invalid("A, B and D must be given");
  if (beta != 0 && !x.c) return invalid("C must be given unless beta is 0");
  if (x.c == x.d && !(p.c == p.d)) return invalid("C is D, with another layout");
  if (p.int8() && o.scale == I32 && o.pointers == CUBLASLT_POINTER_MODE_HOST) {
    const double alpha = scalar(o.scale, x.alpha);
    if ((alpha != 0 && alpha != 1) || (beta != 0 && beta != 1))
      return unsupported("int8 with scale type i32 needs alpha and beta of 0 or 1");
  }
  if (p.fp8() && beta != 0) return unsupported("fp8 with beta: kernels of this version may hang");
  const struct {
    const char* name;
    const void* p;
    cudaDataType type;
  } all[] = {{"A", x.a, p.a.type}, {"B", x.b, p.b.type}, {"C", x.c, p.c.type}, {"D", x.d, p.d.type}};
  for (auto& [name, at, type] : all) {
    const std::size_t need = p.fp8() ? 16 : p.int8() ? 4 : bytes_of(type);
    if (!aligned(at, need)) return invalid(text("%s at %p is not aligned to %zu bytes", name, at, need));
  }
  if (p.fp8())
    for (const float* s : {o.scale_a, o.scale_b, o.scale_d})
      if (!aligned(s, 16))
        return invalid(text("scales at %p are not aligned to 16 bytes", static_cast<const void*>(s)));
  const std::uint32_t e = o.epilogue;
  if ((biased(e) || sums(e)) && !o.bias) return invalid("the epilogue's bias pointer is not set");
  if (!aligned(o.bias, bytes_of(p.bias_type()))) return invalid(text("the bias at %p is not aligned", o.bias));
  if (has_aux(e) && !o.aux) return invalid("the epilogue's auxiliary pointer is not set");
  if (has_aux(e) && !aligned(o.aux, 16)) return invalid(text("auxiliary data at %p is not aligned", o.aux));
  if (!aligned(x.workspace, 256)) return invalid(text("the workspace at %p is not aligned to 256 bytes", x.workspace));
  return {};
}

}  // namespace simt::lt
