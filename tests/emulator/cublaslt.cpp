#include <tapegrad/emulator/cublaslt.h>

#include <algorithm>
#include <cstring>

#include <tapegrad/emulator/cublaslt_internal.h>

namespace simt::lt {
struct Handle {};
namespace {

constexpr std::size_t version = 130100;
std::string why;
Statistics counters;
std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;  // split-k schemes of all algorithms
std::uint32_t refused = 0;                                  // refused candidates
bool biases = true;

cublasStatus_t accept() {
  why.clear();
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t refuse(cublasStatus_t s, std::string text) {
  why = std::move(text);
  return s;
}
cublasStatus_t refuse(const Refusal& r) { return refuse(r.status, r.why); }

template <class T, class... A> cublasStatus_t create(T** out, A... a) {
  const engine::Entry entry;
  if (!out) return refuse(CUBLAS_STATUS_INVALID_VALUE, "the pointer to the new object is null");
  *out = new T{a...};
  ++counters.live;
  return accept();
}
template <class T> cublasStatus_t destroy(T* x) {
  const engine::Entry entry;
  if (!x) return refuse(CUBLAS_STATUS_INVALID_VALUE, "the object to destroy is null");
  delete x;
  --counters.live;
  return accept();
}
template <class T> cublasStatus_t set(T& to, const void* value, std::size_t bytes) {
  const engine::Entry entry;
  if (!value || bytes != sizeof(T))
    return refuse(CUBLAS_STATUS_INVALID_VALUE,
                  "an attribute of " + std::to_string(sizeof(T)) + " bytes, given " + std::to_string(bytes));
  std::memcpy(&to, value, sizeof(T));
  return accept();
}
cublasStatus_t unknown(int attribute) {
  return refuse(CUBLAS_STATUS_INVALID_VALUE, "attribute " + std::to_string(attribute) + " is not known here");
}

enum Field { kMagic, kRank, kKind, kAlignment, kWorkspace, kSum };
constexpr std::uint64_t magic = 0x6c74616c676f3131;

std::uint64_t kind_of(const Problem& p) {
  std::uint64_t h = 1469598103934665603u;
  const auto add = [&](auto v) { h = (h ^ std::uint64_t(v)) * 1099511628211u; };
  add(p.desc.compute), add(p.desc.scale), add(p.desc.trans_a), add(p.desc.trans_b), add(p.desc.epilogue);
  for (const Layout* l : {&p.a, &p.b, &p.c, &p.d}) add(l->type), add(l->order), add(l->mode);
  return h;
}
std::uint64_t sum_of(const cublasLtMatmulAlgo_t& a) {
  std::uint64_t s = 0;
  for (int i = 0; i < kSum; ++i) s = (s ^ a.data[i]) * 1099511628211u;
  return s;
}

// Like cuBLASLt's fastest, the first needs 16-byte alignment and workspace.
struct Candidate {
  std::uint64_t alignment, workspace;
};
constexpr Candidate candidates[] = {{16, 4096}, {1, 0}, {16, 16384}, {16, 0}};

cublasStatus_t checked_algorithm(const Problem& p, const cublasLtMatmulAlgo_t& a) {
  if (a.data[kMagic] != magic || a.data[kSum] != sum_of(a) || a.data[kRank] >= std::size(candidates))
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "this is no algorithm");
  if (a.data[kKind] != kind_of(p)) return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "the algorithm is for another problem");
  return accept();
}

bool overlap(const Layout& l, const void* p, const Layout& d, const void* q) {
  const auto bytes = [](const Layout& x) {
    const auto lines = std::int64_t(x.order == CUBLASLT_ORDER_COL ? x.cols : x.rows),
               length = std::int64_t(x.order == CUBLASLT_ORDER_COL ? x.rows : x.cols);
    return ((x.batch - 1) * x.stride + (lines - 1) * x.ld + length) * std::int64_t(bytes_of(x.type));
  };
  const auto *a = static_cast<const char*>(p), *b = static_cast<const char*>(q);
  return a < b + bytes(d) && b < a + bytes(l);
}

}  // namespace

void set_reductions(std::uint32_t schemes) { reductions = schemes; }
void set_biases(bool on) { biases = on; }
void set_refused(std::uint32_t candidates) { refused = candidates; }
const std::string& refusal() { return why; }
Statistics statistics() { return counters; }

}  // namespace simt::lt

using namespace simt::lt;

const char* cublasLtGetStatusName(cublasStatus_t s) {
  switch (s) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "an unknown status";
}
// cuBLASLt's text plus the emulator's reason.
const char* cublasLtGetStatusString(cublasStatus_t s) {
  static std::string text;
  text = s == CUBLAS_STATUS_SUCCESS         ? "success"
         : s == CUBLAS_STATUS_INVALID_VALUE ? "an unsupported value or parameter was passed to the function"
         : s == CUBLAS_STATUS_NOT_SUPPORTED ? "the functionality requested is not supported"
                                            : cublasLtGetStatusName(s);
  if (s != CUBLAS_STATUS_SUCCESS && !why.empty()) text += ": " + why;
  return text.c_str();
}
std::size_t cublasLtGetVersion() { return version; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* h) { return create(h); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) { return destroy(h); }

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* l, cudaDataType t, std::uint64_t rows,
                                          std::uint64_t cols, std::int64_t ld) {
  return create(l, t, rows, cols, ld);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { return destroy(l); }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t a,
                                                const void* v, std::size_t n) {
  if (!l) return refuse(CUBLAS_STATUS_INVALID_VALUE, "no layout");
  switch (a) {
    case CUBLASLT_MATRIX_LAYOUT_ORDER: return set(l->order, v, n);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return set(l->batch, v, n);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return set(l->stride, v, n);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_MODE: return set(l->mode, v, n);
  }
  return unknown(a);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* d, cublasComputeType_t compute, cudaDataType_t scale) {
  return create(d, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { return destroy(d); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void* v,
                                              std::size_t n) {
  if (!d) return refuse(CUBLAS_STATUS_INVALID_VALUE, "no descriptor");
  switch (a) {
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: return set(d->pointers, v, n);
    case CUBLASLT_MATMUL_DESC_TRANSA: return set(d->trans_a, v, n);
    case CUBLASLT_MATMUL_DESC_TRANSB: return set(d->trans_b, v, n);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(d->epilogue, v, n);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(d->bias, v, n);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return set(d->aux, v, n);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return set(d->aux_ld, v, n);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return set(d->scale_a, v, n);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return set(d->scale_b, v, n);
    case CUBLASLT_MATMUL_DESC_D_SCALE_POINTER: return set(d->scale_d, v, n);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM: return set(d->fast_accumulation, v, n);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return set(d->bias_type, v, n);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE: return set(d->scale_mode_a, v, n);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE: return set(d->scale_mode_b, v, n);
  }
  return unknown(a);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) { return create(p); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return destroy(p); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t a, const void* v,
                                                    std::size_t n) {
  if (!p) return refuse(CUBLAS_STATUS_INVALID_VALUE, "no preference");
  switch (a) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return set(p->workspace, v, n);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return set(p->reductions, v, n);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return set(p->alignment[0], v, n);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return set(p->alignment[1], v, n);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return set(p->alignment[2], v, n);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return set(p->alignment[3], v, n);
  }
  return unknown(a);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t pref, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  const simt::engine::Entry entry;
  ++counters.heuristics;
  if (!h || !desc || !a || !b || !c || !d || !pref || wanted < 1 || !results || !found)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "an argument is missing");
  *found = 0;
  const Problem p{*desc, *a, *b, *c, *d};
  if (auto no = refuses_problem(p)) return refuse(*no);
  if (!biases && desc->epilogue == CUBLASLT_EPILOGUE_BIAS) return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "no bias");
  const std::uint64_t least = *std::ranges::min_element(pref->alignment);
  for (std::uint64_t rank = 0; rank < std::size(candidates) && *found < wanted; ++rank) {
    const Candidate& want = candidates[rank];
    if (want.alignment > least || want.workspace > pref->workspace || !(pref->reductions & reductions)) continue;
    auto& r = results[(*found)++];
    r = {{{magic, rank, kind_of(p), want.alignment, want.workspace}}, want.workspace, CUBLAS_STATUS_SUCCESS, 1, {}};
    r.algo.data[kSum] = sum_of(r.algo);
  }
  if (*found == 0) return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "no algorithm fits the preferences");
  return accept();
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t h, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
  const simt::engine::Entry entry;
  if (!h || !desc || !a || !b || !c || !d || !algo || !result)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "an argument is missing");
  const Problem p{*desc, *a, *b, *c, *d};
  if (auto no = refuses_problem(p)) return refuse(*no);
  if (auto s = checked_algorithm(p, *algo); s != CUBLAS_STATUS_SUCCESS) return s;
  *result = {*algo, algo->data[kWorkspace], CUBLAS_STATUS_SUCCESS, 1, {}};
  return accept();
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t desc, const void* alpha, const void* pa,
                              cublasLtMatrixLayout_t a, const void* pb, cublasLtMatrixLayout_t b, const void* beta,
                              const void* pc, cublasLtMatrixLayout_t c, void* pd, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t* algo, void* workspace, std::size_t workspace_bytes,
                              cudaStream_t stream) {
  const simt::engine::Entry entry;
  if (!h || !desc || !a || !b || !c || !d) return refuse(CUBLAS_STATUS_INVALID_VALUE, "an argument is missing");
  const Problem p{*desc, *a, *b, *c, *d};
  Operands x{alpha, pa, pb, beta, pc, pd, workspace, 0};
  if (auto no = refuses_problem(p)) return refuse(*no);
  if (auto no = refuses_operands(p, x)) return refuse(*no);
  if (algo) {
    if (auto s = checked_algorithm(p, *algo); s != CUBLAS_STATUS_SUCCESS) return s;
    for (const void* at : {pa, pb, pc, static_cast<const void*>(pd)})
      if (reinterpret_cast<std::uintptr_t>(at) % algo->data[kAlignment])
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "the algorithm was chosen for operands aligned to " +
                                                       std::to_string(algo->data[kAlignment]) + " bytes");
    if (refused >> algo->data[kRank] & 1) return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "a test refuses this algorithm");
    x.workspace_used = algo->data[kWorkspace];
    if (x.workspace_used > workspace_bytes || (x.workspace_used && !workspace))
      return refuse(CUBLAS_STATUS_INVALID_VALUE, "the algorithm needs " + std::to_string(x.workspace_used) +
                                                     " bytes of workspace, it has " + std::to_string(workspace_bytes));
  }
  if (overlap(p.a, pa, p.d, pd) || overlap(p.b, pb, p.d, pd))
    simt::engine::fail(simt::Fault::usage, {}, "cublasLtMatmul writes D over an operand that it reads");
  const bool on_host = p.desc.pointers == CUBLASLT_POINTER_MODE_HOST,
             beta_on_host = p.desc.pointers != CUBLASLT_POINTER_MODE_DEVICE;
  const double by = on_host ? scalar(p.desc.scale, alpha) : 1, plus = beta_on_host ? scalar(p.desc.scale, beta) : 1;
  ++counters.products;
  simt::engine::Stream* const s = simt::engine::find(stream);
  const auto work = [=](const simt::engine::Operation& op) { run_product(p, x, by, plus, op); };
  if (!s || simt::engine::submit(*s, {.kind = simt::engine::Kind::kernel,
                                      .run = work,
                                      .kernel = reinterpret_cast<const void*>(&cublasLtMatmul)}) != cudaSuccess)
    return refuse(CUBLAS_STATUS_EXECUTION_FAILED, "the stream refuses the work");
  return accept();
}
