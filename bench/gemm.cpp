// Matrix products as the linear layer runs them: x w, dy w^T and x^T dy; and what two other
// libraries take for the same. OpenBLAS is looked for when the program runs and not linked.
#include <dlfcn.h>

#include <cmath>
#include <memory>

#include "support.hpp"

namespace headwise::bench {

namespace {

enum class Form { nn, nt, tn };

Form form_of(const std::string& name) {
  return name == "nn" ? Form::nn : name == "nt" ? Form::nt : Form::tn;
}

/// The operands of all three forms; what is computed is y, dx or dw.
template <class T>
struct Product {
  Form form;
  Tensor<T, 2> x, w, dy;  // [N, I], [I, O], [N, O]
  Tensor<T, 2> result;

  Product(Form which, const std::vector<Index>& values)
      : form(which),
        x(random_tensor<T>(Shape{values.at(0), values.at(1)}, 1)),
        w(random_tensor<T>(Shape{values.at(1), values.at(2)}, 2)),
        dy(random_tensor<T>(Shape{values.at(0), values.at(2)}, 3)),
        result(form == Form::nn   ? dy.shape()
               : form == Form::nt ? x.shape()
                                  : w.shape()) {}

  /// Its first row against Eigen's, of what one run from 0 gives.
  bool right(const std::function<void(const Context&)>& run) {
    fill(Out<T, 2>(result), T(0));
    run(Context());
    const auto row = [](const Tensor<T, 2>& m) { return eigen_map(slice(m, 0, 0, 1)); };
    EigenMatrix<T> expected(1, result.extent(1));
    switch (form) {
      case Form::nn:
        expected = row(x) * eigen_map(w);
        break;
      case Form::nt:
        expected = row(dy) * eigen_map(w).transpose();
        break;
      case Form::tn:
        expected = eigen_map(slice(transpose(x, 0, 1), 0, 0, 1)) * eigen_map(dy);
        break;
    }
    return bool(
        close_to(In<T, 2>(slice(result, 0, 0, 1)), from_eigen(expected), 10 * tolerance<T>));
  }
};

template <class T>
Case case_of(const std::shared_ptr<Product<T>>& product, std::function<void(const Context&)> run) {
  Case one;
  one.run = std::move(run);
  one.right = [product, again = one.run] { return product->right(again); };
  const Index N = product->x.extent(0), I = product->x.extent(1), O = product->w.extent(1);
  one.flops = 2.0 * static_cast<double>(N * I * O);
  one.bytes = bytes_of(product->x, product->w, product->dy);
  return one;
}

template <class T>
Case gemm(Form form, const std::vector<Index>& values) {
  const auto product = std::make_shared<Product<T>>(form, values);
  return case_of<T>(product, [product](const Context& context) {
    auto& [which, x, w, dy, result] = *product;
    switch (which) {
      case Form::nn:
        return linear_forward(x, w, {}, result, context);
      case Form::nt:
        return linear_backward(In<T, 2>(dy), x, w, result, {}, {}, context);
      case Form::tn:
        return linear_backward(In<T, 2>(dy), x, w, {}, result, {}, context);
    }
  });
}

/// Eigen's product of the same matrices, compiled like everything else here.
template <class T>
Case gemm_eigen(Form form, const std::vector<Index>& values) {
  const auto product = std::make_shared<Product<T>>(form, values);
  struct Matrices {
    EigenMatrix<T> x, w, dy;
  };
  const auto m = std::make_shared<Matrices>(
      Matrices{eigen_map(product->x), eigen_map(product->w), eigen_map(product->dy)});
  return case_of<T>(product, [product, m](const Context&) {
    Eigen::Map<EigenMatrix<T>> c(product->result.data(), product->result.extent(0),
                                 product->result.extent(1));
    switch (product->form) {
      case Form::nn:
        c.noalias() = m->x * m->w;
        break;
      case Form::nt:
        c.noalias() = m->dy * m->w.transpose();
        break;
      case Form::tn:
        c.noalias() += m->x.transpose() * m->dy;
        break;
    }
  });
}

using CblasSgemm = void (*)(int order, int trans_a, int trans_b, int M, int N, int K, float alpha,
                            const float* a, int lda, const float* b, int ldb, float beta, float* c,
                            int ldc);

/// cblas_sgemm of the OpenBLAS that HEADWISE_OPENBLAS names (empty: of none), or that the system
/// has; null where there is none.
CblasSgemm openblas_sgemm() {
  static const CblasSgemm function = []() -> CblasSgemm {
    const char* named = std::getenv("HEADWISE_OPENBLAS");
    if (named != nullptr && *named == '\0') return nullptr;
    void* library = dlopen(named != nullptr ? named : "libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    if (void* set_threads = dlsym(library, "openblas_set_num_threads")) {
      reinterpret_cast<void (*)(int)>(set_threads)(static_cast<int>(num_threads()));
    }
    return reinterpret_cast<CblasSgemm>(dlsym(library, "cblas_sgemm"));
  }();
  return function;
}

Case gemm_openblas(Form form, const std::vector<Index>& values) {
  const auto product = std::make_shared<Product<float>>(form, values);
  return case_of<float>(product, [product](const Context&) {
    constexpr int row_major = 101, plain = 111, transposed = 112;
    const auto& [which, x, w, dy, result] = *product;
    const int N = static_cast<int>(x.extent(0)), I = static_cast<int>(x.extent(1)),
              O = static_cast<int>(w.extent(1));
    float* c = product->result.data();
    switch (which) {
      case Form::nn:
        return openblas_sgemm()(row_major, plain, plain, N, O, I, 1, x.data(), I, w.data(), O, 0, c,
                                O);
      case Form::nt:
        return openblas_sgemm()(row_major, plain, transposed, N, I, O, 1, dy.data(), O, w.data(), O,
                                0, c, I);
      case Form::tn:
        return openblas_sgemm()(row_major, transposed, plain, I, O, N, 1, x.data(), I, dy.data(), O,
                                1, c, O);
    }
  });
}

template <class T>
void add_forms(Families& families, const std::string& family,
               Case (*make)(Form, const std::vector<Index>&)) {
  for (const GemmShape& shape : gemm_shapes()) {
    const Form form = form_of(shape.form);
    families.push_back({name_of<T>(family + "/" + shape.form + "/" + shape.name),
                        {"N", "I", "O"},
                        {{shape.N, shape.I, shape.O}},
                        [form, make](const std::vector<Index>& v) { return make(form, v); }});
  }
}

}  // namespace

void add_gemm(Families& families) {
  add_forms<float>(families, "gemm", gemm<float>);
  add_forms<double>(families, "gemm", gemm<double>);
  add_forms<float>(families, "gemm_eigen", gemm_eigen<float>);
  if (openblas_sgemm() != nullptr) add_forms<float>(families, "gemm_openblas", gemm_openblas);
}

}  // namespace headwise::bench
