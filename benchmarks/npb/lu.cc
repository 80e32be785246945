// LU: the compressible Navier-Stokes equations by symmetric successive over-relaxation. Own code
// after the NPB report (RNR-94-007, 3.4) and the official norms. Ranks share the x-y plane; the
// sweeps go through it as a wave, plane by plane, with one pencil of points to each neighbour.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "benchmarks/npb/channel.h"
#include "benchmarks/npb/lu_physics.h"

namespace npb {
namespace lu {

void exact(double xi, double eta, double zeta, double* out) {
  // Coefficients of the polynomials: constant, then of xi, eta, zeta to the 1st, 2nd, ... power.
  static constexpr double kCoefficients[5][13] = {
      {2.0, 0.0, 0.0, 4.0, 5.0, 3.0, 0.5, 0.02, 0.01, 0.03, 0.5, 0.4, 0.3},
      {1.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 0.01, 0.03, 0.02, 0.4, 0.3, 0.5},
      {2.0, 2.0, 0.0, 0.0, 0.0, 2.0, 3.0, 0.04, 0.03, 0.05, 0.3, 0.5, 0.4},
      {2.0, 2.0, 0.0, 0.0, 0.0, 2.0, 3.0, 0.03, 0.05, 0.04, 0.2, 0.1, 0.3},
      {5.0, 4.0, 3.0, 2.0, 0.1, 0.4, 0.3, 0.05, 0.04, 0.03, 0.1, 0.3, 0.2}};
  const double at[3] = {xi, eta, zeta};
  for (int c = 0; c < 5; ++c) {
    const double* ce = kCoefficients[c];
    out[c] = ce[0];
    for (int a = 0; a < 3; ++a)
      out[c] +=
          at[a] * (ce[1 + a] + at[a] * (ce[4 + a] + at[a] * (ce[7 + a] + at[a] * ce[10 + a])));
  }
}

}  // namespace lu

namespace {

using lu::Axis;
using lu::Matrix;
constexpr double kOmega = 1.2;
constexpr double kEpsilon = 1e-8;
constexpr int kGhosts = 2;

struct Problem {
  int n, steps;
  double dt;
  double residual[5], error[5], surface;
};
const Problem kS = {12,
                    50,
                    0.5,
                    {1.6196343210976702e-2, 2.1976745164821318e-3, 1.5179927653399185e-3,
                     1.5029584435994323e-3, 3.4264073155896461e-2},
                    {6.4223319957960924e-4, 8.4144342047347926e-5, 5.8588269616485186e-5,
                     5.8474222595157350e-5, 1.3103347914111294e-3},
                    7.8418928865937083};
const Problem kW = {
    33,
    300,
    1.5e-3,
    {12.36511638192, 1.317228477799, 2.550120713095, 2.326187750252, 28.26799444189},
    {0.4867877144216, 0.05064652880982, 0.09281818101960, 0.08570126542733, 1.084277417792},
    11.61399311023};
const Problem kA = {64,
                    250,
                    2.0,
                    {779.02107606689367, 63.402765259692870, 194.99249727292479, 178.45301160418537,
                     1838.4760349464247},
                    {29.964085685471943, 2.8194576365003349, 7.3473412698774742, 6.7139225687777051,
                     70.715315688392578},
                    26.030925604886277};

// As square a grid of ranks as there is, more of them along x.
int rows_of(int ranks) {
  int rows = static_cast<int>(std::sqrt(ranks));
  while (ranks % rows != 0) --rows;
  return rows;
}

class Solver {
 public:
  Solver(Channel& channel, const Problem& problem)
      : channel_(channel), n_(problem.n), dt_(problem.dt) {
    rows_ = rows_of(channel.size());
    columns_ = channel.size() / rows_;
    column_ = channel.rank() % columns_;
    row_ = channel.rank() / columns_;
    x0_ = n_ * column_ / columns_;
    y0_ = n_ * row_ / rows_;
    nx_ = n_ * (column_ + 1) / columns_ - x0_;
    ny_ = n_ * (row_ + 1) / rows_ - y0_;
    stride_y_ = 5 * (nx_ + 2 * kGhosts);
    stride_z_ = stride_y_ * (ny_ + 2 * kGhosts);
    for (auto* field : {&u_, &rsd_, &forcing_})
      field->assign(static_cast<size_t>(stride_z_) * static_cast<size_t>(n_), 0.0);
    const double h = 1.0 / (n_ - 1);
    for (int a = 0; a < 3; ++a)
      axes_[a] = {a + 1, 1.0 / (h * h), 1.0 / (2.0 * h), 1.0 / h, a == 2 ? 1.0 : 0.75};
    const size_t face = static_cast<size_t>(std::max(nx_, ny_) * n_ * kGhosts * 5) * 8;
    for (Block* block : {&out_, &in_}) *block = channel.allocate(face);
    sums_ = channel.allocate(5 * 8);
    make_forcing();
  }

  void start() {
    each(0, [&](int k, int j, int i, ptrdiff_t p) { initial(k, j, i, &u_[p]); });
    exchange_ghosts();
    right_side();
  }

  void step() {
    each(1, [&](int, int, int, ptrdiff_t p) {
      for (int c = 0; c < 5; ++c) rsd_[p + c] *= dt_;
    });
    for (int k = 1; k < n_ - 1; ++k) lower(k);
    for (int k = n_ - 2; k > 0; --k) upper(k);
    const double factor = 1.0 / (kOmega * (2.0 - kOmega));
    each(1, [&](int, int, int, ptrdiff_t p) {
      for (int c = 0; c < 5; ++c) u_[p + c] += factor * rsd_[p + c];
    });
    exchange_ghosts();
    right_side();
  }

  std::vector<double> residual_norms() {
    return norms([&](int, int, int, ptrdiff_t p, double* out) {
      for (int c = 0; c < 5; ++c) out[c] += rsd_[p + c] * rsd_[p + c];
    });
  }
  std::vector<double> error_norms() {
    return norms([&](int k, int j, int i, ptrdiff_t p, double* out) {
      double right[5];
      exact_at(k, j, i, right);
      for (int c = 0; c < 5; ++c) out[c] += (right[c] - u_[p + c]) * (right[c] - u_[p + c]);
    });
  }

  // The pressure over the faces of a box inside the grid, by the trapezoid rule.
  double surface_integral() {
    const int x1 = 1, x2 = n_ - 2, y1 = 1, y2 = n_ - 3, z1 = 2, z2 = n_ - 2;
    auto pressure = [&](ptrdiff_t p) {
      const double* u = &u_[p];
      return lu::kC2 * (u[4] - 0.5 * lu::momentum_square(u) / u[0]);
    };
    // How many cells of a range meet in a point of it.
    auto cells = [](int at, int first, int last) {
      return at < first || at > last ? 0 : (at == first || at == last ? 1 : 2);
    };
    double sum = 0;
    each(0, [&](int k, int j, int i, ptrdiff_t p) {
      int weight = 0;
      if (k == z1 || k == z2) weight += cells(i, x1, x2) * cells(j, y1, y2);
      if (j == y1 || j == y2) weight += cells(i, x1, x2) * cells(k, z1, z2);
      if (i == x1 || i == x2) weight += cells(j, y1, y2) * cells(k, z1, z2);
      if (weight > 0) sum += weight * pressure(p);
    });
    const double h = 1.0 / (n_ - 1);
    return 0.25 * h * h * channel_.sum(sum);
  }
  void corrupt() { u_[static_cast<size_t>(place(n_ / 2, ny_ / 2, nx_ / 2))] *= 1.001; }

 private:
  using Field = std::vector<double>;
  // k from 0; j and i count from this rank's first point.
  ptrdiff_t place(int k, int j, int i) const {
    return k * stride_z_ + (j + kGhosts) * stride_y_ + (i + kGhosts) * 5;
  }
  // visit(k, j, i, place) for this rank's points, k, j and i of the whole grid; those nearer than
  // `margin` to its boundary left out.
  template <typename Visit>
  void each(int margin, Visit visit) {
    for (int k = margin; k < n_ - margin; ++k)
      for (int j = first(margin, y0_); j < last(margin, y0_, ny_); ++j)
        for (int i = first(margin, x0_); i < last(margin, x0_, nx_); ++i)
          visit(k, y0_ + j, x0_ + i, place(k, j, i));
  }
  static int first(int margin, int begin) { return std::max(margin - begin, 0); }
  int last(int margin, int begin, int count) const { return std::min(n_ - margin - begin, count); }

  void exact_at(int k, int j, int i, double* out) const {
    const double h = 1.0 / (n_ - 1);
    lu::exact(i * h, j * h, k * h, out);
  }
  // Exact on the boundary, inside it blended from the six faces.
  void initial(int k, int j, int i, double* out) const {
    const int at[3] = {i, j, k};
    if (std::any_of(at, at + 3, [&](int p) { return p == 0 || p == n_ - 1; }))
      return exact_at(k, j, i, out);
    double low[3][5], high[3][5];
    for (int a = 0; a < 3; ++a) {
      int end[3] = {i, j, k};
      end[a] = 0;
      exact_at(end[2], end[1], end[0], low[a]);
      end[a] = n_ - 1;
      exact_at(end[2], end[1], end[0], high[a]);
    }
    for (int c = 0; c < 5; ++c) {
      double p[3];
      for (int a = 0; a < 3; ++a) {
        const double t = static_cast<double>(at[a]) / (n_ - 1);
        p[a] = (1.0 - t) * low[a][c] + t * high[a][c];
      }
      out[c] = p[0] + p[1] + p[2] - p[0] * p[1] - p[1] * p[2] - p[2] * p[0] + p[0] * p[1] * p[2];
    }
  }

  void add_all_axes(const Field& of, int k, int j, int i, ptrdiff_t p, double* out) {
    lu::add_axis(&of[p], 5, i, n_, axes_[0], out);
    lu::add_axis(&of[p], stride_y_, j, n_, axes_[1], out);
    lu::add_axis(&of[p], stride_z_, k, n_, axes_[2], out);
  }
  // So that the exact solution is one.
  void make_forcing() {
    Field& right = rsd_;
    for (int k = 0; k < n_; ++k)
      for (int j = -kGhosts; j < ny_ + kGhosts; ++j)
        for (int i = -kGhosts; i < nx_ + kGhosts; ++i)
          exact_at(k, y0_ + j, x0_ + i, &right[static_cast<size_t>(place(k, j, i))]);
    each(1,
         [&](int k, int j, int i, ptrdiff_t p) { add_all_axes(right, k, j, i, p, &forcing_[p]); });
    std::fill(right.begin(), right.end(), 0.0);
  }
  void right_side() {
    each(1, [&](int k, int j, int i, ptrdiff_t p) {
      for (int c = 0; c < 5; ++c) rsd_[p + c] = -forcing_[p + c];
      add_all_axes(u_, k, j, i, p, &rsd_[p]);
    });
  }

  int neighbour(int dx, int dy) const {
    const int column = column_ + dx, row = row_ + dy;
    if (column < 0 || column >= columns_ || row < 0 || row >= rows_) return -1;
    return row * columns_ + column;
  }

  // Copies between a field and a block: `width` columns (dx != 0) or rows from `from` on, of planes
  // [k0, k1).
  enum class Way { kOut, kIn };
  size_t copy_face(Field& field, Way way, bool columns, int from, int width, int k0, int k1) {
    double* block = (way == Way::kOut ? out_ : in_).as<double>();
    size_t at = 0;
    const int length = columns ? ny_ : nx_;
    for (int k = k0; k < k1; ++k)
      for (int w = 0; w < width; ++w)
        for (int l = 0; l < length; ++l, at += 5) {
          double* point =
              &field[static_cast<size_t>(columns ? place(k, l, from + w) : place(k, from + w, l))];
          if (way == Way::kOut) {
            std::copy_n(point, 5, block + at);
          } else {
            std::copy_n(block + at, 5, point);
          }
        }
    return at * 8;
  }

  void exchange_ghosts() {
    for (bool columns : {true, false}) {
      const int count = columns ? nx_ : ny_;
      for (int side : {1, -1}) {
        const int to = columns ? neighbour(side, 0) : neighbour(0, side);
        const int from = columns ? neighbour(-side, 0) : neighbour(0, -side);
        if (to < 0 && from < 0) continue;
        const size_t bytes =
            copy_face(u_, Way::kOut, columns, side > 0 ? count - kGhosts : 0, kGhosts, 0, n_);
        channel_.send_receive(to, part(out_, 0, bytes), from, part(in_, 0, bytes), 21);
        if (from >= 0)
          copy_face(u_, Way::kIn, columns, side > 0 ? -kGhosts : count, kGhosts, 0, n_);
      }
    }
  }

  // A sweep's wave: what the neighbours behind (side -1: lower indices) found in plane k.
  void receive_pencils(int k, int side) {
    for (bool columns : {true, false}) {
      const int from = columns ? neighbour(side, 0) : neighbour(0, side);
      if (from < 0) continue;
      const int count = columns ? nx_ : ny_, length = columns ? ny_ : nx_;
      channel_.receive(from, 22, part(in_, 0, static_cast<size_t>(length) * 40));
      copy_face(rsd_, Way::kIn, columns, side < 0 ? -1 : count, 1, k, k + 1);
    }
  }
  void send_pencils(int k, int side) {
    for (bool columns : {true, false}) {
      const int to = columns ? neighbour(side, 0) : neighbour(0, side);
      if (to < 0) continue;
      const int count = columns ? nx_ : ny_;
      const size_t bytes =
          copy_face(rsd_, Way::kOut, columns, side > 0 ? count - 1 : 0, 1, k, k + 1);
      channel_.send(to, 22, part(out_, 0, bytes));
    }
  }

  // sum += omega * block * rsd of the three neighbours on one side.
  void add_neighbours(ptrdiff_t p, int side, double* sum) {
    const ptrdiff_t strides[3] = {5, stride_y_, stride_z_};
    for (int a = 2; a >= 0; --a) {
      const ptrdiff_t q = p + side * strides[a];
      Matrix block;
      lu::neighbour_block(&u_[static_cast<size_t>(q)], axes_[a], dt_, side, block);
      const double* v = &rsd_[static_cast<size_t>(q)];
      for (int r = 0; r < 5; ++r) {
        double product = 0;
        for (int c = 0; c < 5; ++c) product += block[r][c] * v[c];
        sum[r] += kOmega * product;
      }
    }
  }

  void lower(int k) {
    receive_pencils(k, -1);
    for (int j = first(1, y0_); j < last(1, y0_, ny_); ++j)
      for (int i = first(1, x0_); i < last(1, x0_, nx_); ++i) {
        const ptrdiff_t p = place(k, j, i);
        double sum[5] = {};
        add_neighbours(p, -1, sum);
        double* v = &rsd_[static_cast<size_t>(p)];
        for (int c = 0; c < 5; ++c) v[c] -= sum[c];
        Matrix diagonal;
        lu::diagonal_block(&u_[static_cast<size_t>(p)], axes_, dt_, diagonal);
        lu::solve_block(diagonal, v);
      }
    send_pencils(k, 1);
  }
  void upper(int k) {
    receive_pencils(k, 1);
    for (int j = last(1, y0_, ny_) - 1; j >= first(1, y0_); --j)
      for (int i = last(1, x0_, nx_) - 1; i >= first(1, x0_); --i) {
        const ptrdiff_t p = place(k, j, i);
        double sum[5] = {};
        add_neighbours(p, 1, sum);
        Matrix diagonal;
        lu::diagonal_block(&u_[static_cast<size_t>(p)], axes_, dt_, diagonal);
        lu::solve_block(diagonal, sum);
        for (int c = 0; c < 5; ++c) rsd_[static_cast<size_t>(p + c)] -= sum[c];
      }
    send_pencils(k, -1);
  }

  template <typename Add>
  std::vector<double> norms(Add add) {
    double mine[5] = {};
    each(1, [&](int k, int j, int i, ptrdiff_t p) { add(k, j, i, p, mine); });
    std::copy_n(mine, 5, sums_.as<double>());
    channel_.allreduce(whole(sums_), Type::kDouble, Op::kSum);
    std::vector<double> result;
    const double points = std::pow(n_ - 2.0, 3);
    for (int c = 0; c < 5; ++c) result.push_back(std::sqrt(sums_.as<double>()[c] / points));
    return result;
  }

  Channel& channel_;
  int n_;
  double dt_;
  int rows_, columns_, row_, column_;  // of the grid of ranks
  int x0_, y0_, nx_, ny_;
  ptrdiff_t stride_y_, stride_z_;
  Axis axes_[3];
  Field u_, rsd_, forcing_;
  Block out_, in_, sums_;
};

void compare(const char* what, double value, double expected, Outcome& outcome) {
  const double off = std::abs((value - expected) / expected);
  if (off <= kEpsilon) return;
  outcome.verified = false;
  if (outcome.wrong.empty())
    outcome.wrong =
        std::string(what) + " is " + std::to_string(value) + ", not " + std::to_string(expected);
}

}  // namespace

void check_lu(const Arguments& arguments, int ranks) {
  // The columns are the larger number, so theirs is the smallest part.
  if (of_class(arguments, kS, kW, kA).n / (ranks / rows_of(ranks)) < kGhosts)
    usage("lu: " + std::to_string(ranks) + " ranks are too many for class " +
          arguments.problem_class + ": lower --ranks");
}

Outcome run_lu(Channel& channel, const Arguments& arguments) {
  const Problem& problem = of_class(arguments, kS, kW, kA);
  Outcome outcome;
  Solver solver(channel, problem);
  solver.start();
  solver.step();  // untimed, as NPB does
  solver.start();
  if (arguments.corrupt && channel.rank() == 0) solver.corrupt();
  Timer timer(channel);
  timer.start();
  for (int step = 0; step < problem.steps; ++step) solver.step();
  timer.finish(outcome);
  outcome.verified = true;
  const std::vector<double> residual = solver.residual_norms(), error = solver.error_norms();
  for (int c = 0; c < 5; ++c) {
    compare("a residual", residual[static_cast<size_t>(c)], problem.residual[c], outcome);
    compare("an error", error[static_cast<size_t>(c)], problem.error[c], outcome);
  }
  compare("the surface integral", solver.surface_integral(), problem.surface, outcome);
  const double n = problem.n;
  outcome.mops = problem.steps * (1984.77 * n * n * n - 10923.3 * n * n + 27770.9 * n - 144010.0) /
                 outcome.seconds * 1e-6;
  return outcome;
}

}  // namespace npb
