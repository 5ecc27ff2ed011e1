// The schemas of torch.ops.surprise_hf. Implementations: ops and loss in cpu/ and cuda/; shapes, dtypes and the meaning
// of each argument: surprise_hf/ops/__init__.py. tests/ops/test_torch_contract.py holds this list equal to the Python
// one.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(surprise_hf, m) {
  // The keys are the ensemble: one pass for norms, cosines and moments, one sweep to scores.
  m.def(
      "cosine_surprise(Tensor keys, Tensor queries, *, bool normalize=True, str output='score')"
      " -> (Tensor scores, Tensor mean, Tensor std)");
  // Moments alone; no matrix is kept.
  m.def("cosine_moments(Tensor ensemble, Tensor queries, *, bool normalize=True) -> (Tensor mean, Tensor std)");
  // Known moments: the score is computed while the tile of products is hot.
  m.def(
      "surprise_from_moments(Tensor keys, Tensor queries, Tensor mean, Tensor std, *, bool normalize=True,"
      " str output='score') -> Tensor");
  // Best k queries per key by z; no matrix.
  m.def(
      "surprise_topk(Tensor keys, Tensor queries, Tensor mean, Tensor std, int k, *, bool normalize=True,"
      " str output='score') -> (Tensor values, Tensor indices)");
  // For each query the rows with the largest products under a scale for each row; no matrix.
  m.def(
      "search_topk(Tensor keys, Tensor queries, Tensor margin, Tensor? scale, int k, *, float? upper=None)"
      " -> (Tensor values, Tensor indices)");
  // Each query's products with rows of its own, float32 numbers kept in two halves, in float64.
  m.def("gathered_products(Tensor near, Tensor rest, Tensor rows, Tensor queries) -> Tensor");
  // Merge a batch into (count, mean, scatter), in place.
  m.def(
      "ensemble_update(Tensor(a!) count, Tensor(b!) mean, Tensor(c!) scatter, Tensor batch, *,"
      " bool normalize=True, bool exact=False) -> ()");
  // Mean and variance of each query's similarity from the ensemble's mean and covariance.
  m.def(
      "ensemble_moments(Tensor mean, Tensor covariance, Tensor queries, *, bool normalize=True)"
      " -> (Tensor mean, Tensor variance)");
  // The loss of every document with every label, and what its gradient needs: the slopes dl/dcos.
  m.def(
      "weighted_focal_loss(Tensor keys, Tensor queries, Tensor positive, Tensor? weight=None, *, float gamma=1.0,"
      " float epsilon=0.05, str probability='softplus', float delta=1e-10, bool balanced=True)"
      " -> (Tensor loss, Tensor cross_entropy, Tensor slope)");
  // Its gradient; an empty tensor for the side that is not wanted.
  m.def(
      "weighted_focal_loss_backward(Tensor grad, Tensor keys, Tensor queries, Tensor slope, *,"
      " bool need_keys=True, bool need_queries=True)"
      " -> (Tensor grad_keys, Tensor grad_queries)");
  // Which CPU kernels this process uses.
  m.def("cpu_features() -> str");
}

// The library carries no Python code; the symbol lets setuptools treat it as an abi3 extension.
extern "C" void* PyInit__C() { return nullptr; }
