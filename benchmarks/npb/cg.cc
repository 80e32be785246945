// CG: the smallest eigenvalue of a sparse matrix by inverse power iteration with conjugate
// gradients. Own code after the NPB report (RNR-94-007, 2.4) and the official values of zeta.
// Every rank has a block of rows; vectors are gathered whole before each product.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "benchmarks/npb/channel.h"
#include "benchmarks/npb/random.h"

namespace npb {
namespace {

constexpr int kInnerSteps = 25;
constexpr double kRcond = 0.1;
constexpr double kEpsilon = 1e-10;

struct Problem {
  int order, nonzer, iterations;
  double shift, zeta;
};
const Problem kS = {1400, 7, 15, 10.0, 8.5971775078648};
const Problem kW = {7000, 8, 15, 12.0, 10.362595087124};
const Problem kA = {14000, 11, 15, 20.0, 17.130235054029};

struct Element {
  int column;
  double value;
};

// Rows [first, first + count) of the matrix.
struct Matrix {
  std::vector<size_t> row;  // begin of each in elements, and one past the last
  std::vector<Element> elements;
};

// One sparse random vector: `nonzer` values at places below `order`.
void random_vector(Random& random, int order, int nonzer, int power, std::vector<Element>& out) {
  out.clear();
  while (static_cast<int>(out.size()) < nonzer) {
    const double value = random.next();
    const int place = static_cast<int>(power * random.next());
    if (place >= order) continue;
    const bool known =
        std::any_of(out.begin(), out.end(), [&](const Element& e) { return e.column == place; });
    if (!known) out.push_back({place, value});
  }
}

// The sum of weighted outer products of sparse vectors, as NPB defines the matrix. All ranks draw
// the same numbers and keep their rows.
Matrix make_matrix(const Problem& problem, int first, int count) {
  Random random;
  (void)random.next();  // NPB draws one before
  int power = 1;
  while (power < problem.order) power *= 2;
  std::vector<std::vector<Element>> rows(static_cast<size_t>(count));
  const double ratio = std::pow(kRcond, 1.0 / problem.order);
  double size = 1.0;
  std::vector<Element> vector;
  for (int i = 0; i < problem.order; ++i, size *= ratio) {
    random_vector(random, problem.order, problem.nonzer, power, vector);
    auto diagonal =
        std::find_if(vector.begin(), vector.end(), [&](const Element& e) { return e.column == i; });
    if (diagonal != vector.end()) {
      diagonal->value = 0.5;
    } else {
      vector.push_back({i, 0.5});
    }
    for (const Element& down : vector) {
      if (down.column < first || down.column >= first + count) continue;
      for (const Element& across : vector) {
        double value = across.value * (size * down.value);
        if (across.column == down.column && down.column == i) value += kRcond - problem.shift;
        rows[static_cast<size_t>(down.column - first)].push_back({across.column, value});
      }
    }
  }
  Matrix matrix;
  matrix.row.push_back(0);
  for (std::vector<Element>& row : rows) {
    std::stable_sort(row.begin(), row.end(),
                     [](const Element& a, const Element& b) { return a.column < b.column; });
    for (const Element& element : row) {
      const bool same = matrix.elements.size() > matrix.row.back() &&
                        matrix.elements.back().column == element.column;
      if (same) {
        matrix.elements.back().value += element.value;
      } else {
        matrix.elements.push_back(element);
      }
    }
    matrix.row.push_back(matrix.elements.size());
    std::vector<Element>().swap(row);
  }
  return matrix;
}

class Solver {
 public:
  Solver(Channel& channel, const Problem& problem)
      : channel_(channel), problem_(problem), count_(problem.order / channel.size()) {
    const int first = count_ * channel.rank();
    matrix_ = make_matrix(problem, first, count_);
    gathered_ = channel.allocate(static_cast<size_t>(problem.order) * 8);
    mine_ = gathered_.as<double>() + first;
    for (auto* vector : {&x_, &z_, &p_, &q_, &r_}) vector->resize(static_cast<size_t>(count_));
    start();
  }
  void start() { std::fill(x_.begin(), x_.end(), 1.0); }

  // One outer step; the estimate of the eigenvalue.
  double step() {
    solve();
    const double xz = dot(x_, z_);
    const double norm = 1.0 / std::sqrt(dot(z_, z_));
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = norm * z_[i];
    return problem_.shift + 1.0 / xz;
  }
  void corrupt() { matrix_.elements[0].value *= 1.0001; }

 private:
  using Vector = std::vector<double>;
  double dot(const Vector& a, const Vector& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return channel_.sum(sum);
  }
  void multiply(const Vector& by, Vector& out) {
    std::memcpy(mine_, by.data(), by.size() * 8);
    const size_t bytes = by.size() * 8;
    channel_.allgather(part(gathered_, static_cast<size_t>(channel_.rank()) * bytes, bytes),
                       whole(gathered_));
    const double* vector = gathered_.as<double>();
    for (size_t i = 0; i < out.size(); ++i) {
      double sum = 0;
      for (size_t e = matrix_.row[i]; e < matrix_.row[i + 1]; ++e)
        sum += matrix_.elements[e].value * vector[matrix_.elements[e].column];
      out[i] = sum;
    }
  }
  // A z = x, by kInnerSteps steps.
  void solve() {
    std::fill(z_.begin(), z_.end(), 0.0);
    r_ = x_;
    p_ = x_;
    double rho = dot(r_, r_);
    for (int step = 0; step < kInnerSteps; ++step) {
      multiply(p_, q_);
      const double alpha = rho / dot(p_, q_);
      for (size_t i = 0; i < z_.size(); ++i) {
        z_[i] += alpha * p_[i];
        r_[i] -= alpha * q_[i];
      }
      const double before = rho;
      rho = dot(r_, r_);
      const double beta = rho / before;
      for (size_t i = 0; i < p_.size(); ++i) p_[i] = r_[i] + beta * p_[i];
    }
    multiply(z_, q_);  // NPB computes the residual's norm too
    for (size_t i = 0; i < q_.size(); ++i) q_[i] = x_[i] - q_[i];
    residual_ = std::sqrt(dot(q_, q_));
  }

  Channel& channel_;
  const Problem& problem_;
  int count_;
  Matrix matrix_;
  Block gathered_;
  double* mine_;
  Vector x_, z_, p_, q_, r_;
  double residual_ = 0;
};

}  // namespace

void check_cg(const Arguments& arguments, int ranks) {
  const int order = of_class(arguments, kS, kW, kA).order;
  if (order % ranks != 0) usage("cg: " + std::to_string(order) + " rows do not divide by --ranks");
}

Outcome run_cg(Channel& channel, const Arguments& arguments) {
  const Problem& problem = of_class(arguments, kS, kW, kA);
  Outcome outcome;
  Solver solver(channel, problem);
  (void)solver.step();  // untimed, as NPB does
  solver.start();
  if (arguments.corrupt && channel.rank() == 0) solver.corrupt();
  double zeta = 0;
  Timer timer(channel);
  timer.start();
  for (int iteration = 0; iteration < problem.iterations; ++iteration) zeta = solver.step();
  timer.finish(outcome);
  outcome.verified = std::abs(zeta - problem.zeta) <= kEpsilon;
  outcome.wrong = "zeta is off by " + std::to_string((zeta - problem.zeta) / kEpsilon) + " epsilon";
  const double terms = problem.nonzer * (problem.nonzer + 1.0);
  outcome.mops = 2.0 * problem.iterations * problem.order *
                 (3.0 + terms + kInnerSteps * (5.0 + terms) + 3.0) / outcome.seconds * 1e-6;
  return outcome;
}

}  // namespace npb
