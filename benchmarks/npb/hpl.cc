// HPL: solves a dense system by LU with partial pivoting on a P x Q grid of ranks, blocks spread
// cyclically, with a look-ahead of one panel. Own code after HPL's description; the rule for the
// residual and the count of operations are those of HPL 2.3 (testing/ptest/HPL_pdtest.c).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "benchmarks/npb/channel.h"

namespace npb {
namespace {

constexpr double kMostResidual = 16.0;

// Any element of the matrix at once: a 64-bit generator's state after `index` steps, mixed
// (splitmix64), as a number from -0.5 to 0.5.
double element(uint64_t row, uint64_t column) {
  uint64_t z = (row << 32 | column) * 0x9E3779B97F4A7C15u + 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return static_cast<double>((z ^ z >> 31) >> 11) * 0x1p-53 - 0.5;
}

// Column-major part of the matrix [A b] of order n, in blocks of nb: this rank has block row i if
// i % rows == my row, and the same for columns.
class Solver {
 public:
  Solver(Channel& channel, int order, int block, int rows)
      : channel_(channel),
        n_(order),
        nb_(block),
        rows_(rows),
        columns_(channel.size() / rows),
        my_row_(channel.rank() % rows),
        my_column_(channel.rank() / rows),
        height_(local(n_, my_row_, rows_)),
        width_(local(n_ + 1, my_column_, columns_)),
        a_(static_cast<size_t>(height_) * static_cast<size_t>(width_)) {
    for (int j = 0; j < width_; ++j)
      for (int i = 0; i < height_; ++i)
        at(i, j) = element(static_cast<uint64_t>(global(i, my_row_, rows_)),
                           static_cast<uint64_t>(global(j, my_column_, columns_)));
    for (Block& panel : panels_)
      panel = channel.allocate((static_cast<size_t>(height_) + 2) * static_cast<size_t>(nb_) * 8 +
                               static_cast<size_t>(nb_) * 8);
    row_ = channel.allocate((static_cast<size_t>(nb_) + 2) * 8 * 2);
    other_ = channel.allocate((static_cast<size_t>(nb_) + 2) * 8 * 2);
    top_ = channel.allocate(static_cast<size_t>(nb_) * static_cast<size_t>(width_ + 1) * 8);
    swapped_ = channel.allocate(static_cast<size_t>(width_ + 1) * 8);
    received_ = channel.allocate(static_cast<size_t>(width_ + 1) * 8);
  }

  void factor() {
    const int steps = (n_ + nb_ - 1) / nb_;
    if (my_column_ == 0) factor_panel(0, panels_[0]);
    send_panel(0, panels_[0]);
    for (int step = 0; step < steps; ++step) {
      Block& panel = panels_[step % 2];
      Block& next = panels_[(step + 1) % 2];
      apply_pivots(step, panel);
      solve_top(step, panel);
      // The next panel's columns first; it goes out before the rest is updated.
      const int owner = (step + 1) % columns_;
      const int first = first_local((step + 1) * nb_, my_column_, columns_);
      int rest = first;
      if (step + 1 < steps && my_column_ == owner) {
        rest = std::min(first + panel_width(step + 1), width_);
        update(step, panel, first, rest);
        factor_panel(step + 1, next);
      }
      if (step + 1 < steps) post_panel(step + 1, next);
      update(step, panel, rest, width_);
      if (step + 1 < steps) send_panel(step + 1, next);
    }
  }

  // x, on every rank, by blocks from the last to the first.
  std::vector<double> solve() {
    std::vector<double> x(static_cast<size_t>(n_));
    Block sum = channel_.allocate(static_cast<size_t>(nb_) * 8);
    Block part_of_x = channel_.allocate(static_cast<size_t>(nb_) * 8);
    const int b_column = (n_ / nb_) % columns_;
    for (int step = (n_ - 1) / nb_; step >= 0; --step) {
      const int first = step * nb_, count = std::min(nb_, n_ - first);
      const int owner_row = step % rows_, owner_column = step % columns_;
      double* values = sum.as<double>();
      std::fill(values, values + nb_, 0.0);
      if (my_row_ == owner_row) {
        const int i = first_local(first, my_row_, rows_);
        if (my_column_ == b_column)
          for (int k = 0; k < count; ++k) values[k] = at(i + k, width_ - 1);
        for (int j = first_local(first + nb_, my_column_, columns_); j < width_; ++j) {
          const int column = global(j, my_column_, columns_);
          if (column >= n_) continue;
          for (int k = 0; k < count; ++k)
            values[k] -= at(i + k, j) * x[static_cast<size_t>(column)];
        }
      }
      channel_.allreduce(whole(sum), Type::kDouble, Op::kSum);
      double* out = part_of_x.as<double>();
      std::copy(values, values + nb_, out);
      if (my_row_ == owner_row && my_column_ == owner_column) {
        const int i = first_local(first, my_row_, rows_);
        const int j = first_local(first, my_column_, columns_);
        for (int k = count - 1; k >= 0; --k) {
          out[k] /= at(i + k, j + k);
          for (int above = 0; above < k; ++above) out[above] -= at(i + above, j + k) * out[k];
        }
      }
      channel_.broadcast(whole(part_of_x), rank_of(owner_row, owner_column));
      std::copy(out, out + count, x.begin() + first);
    }
    return x;
  }

  // ||Ax-b|| / (eps (||A|| ||x|| + ||b||) n), norms of the largest row sum, A as it was.
  double residual(const std::vector<double>& x) {
    double worst = 0, a_norm = 0, b_norm = 0, x_norm = 0;
    for (int i = channel_.rank(); i < n_; i += channel_.size()) {
      double sum = 0, absolute = 0;
      for (int j = 0; j < n_; ++j) {
        const double value = element(static_cast<uint64_t>(i), static_cast<uint64_t>(j));
        sum += value * x[static_cast<size_t>(j)];
        absolute += std::abs(value);
      }
      const double b = element(static_cast<uint64_t>(i), static_cast<uint64_t>(n_));
      worst = std::max(worst, std::abs(sum - b));
      a_norm = std::max(a_norm, absolute);
      b_norm = std::max(b_norm, std::abs(b));
    }
    for (double value : x) x_norm = std::max(x_norm, std::abs(value));
    worst = channel_.max(worst);
    a_norm = channel_.max(a_norm);
    b_norm = channel_.max(b_norm);
    return worst / (std::numeric_limits<double>::epsilon() / 2 * (a_norm * x_norm + b_norm) * n_);
  }

 private:
  double& at(int i, int j) {
    return a_[static_cast<size_t>(j) * static_cast<size_t>(height_) + static_cast<size_t>(i)];
  }
  int local(int count, int mine, int ranks) const {
    int sum = 0;
    for (int block = mine; block * nb_ < count; block += ranks)
      sum += std::min(nb_, count - block * nb_);
    return sum;
  }
  int global(int i, int mine, int ranks) const { return (i / nb_ * ranks + mine) * nb_ + i % nb_; }
  // First local index whose global one is at least `index`, a multiple of nb.
  int first_local(int index, int mine, int ranks) const {
    const int block = index / nb_;
    return (block - mine + ranks - 1 < 0 ? 0 : (block - mine + ranks - 1) / ranks) * nb_;
  }
  int local_row(int row) const { return row / nb_ / rows_ * nb_ + row % nb_; }
  bool has_row(int row) const { return row / nb_ % rows_ == my_row_; }
  int rank_of(int row, int column) const { return column * rows_ + row; }
  int panel_width(int step) const { return std::min(nb_, n_ - step * nb_); }
  int panel_height(int step) const {
    return std::max(0, height_ - first_local(step * nb_, my_row_, rows_));
  }
  // A panel as it travels: the pivots' rows, the diagonal block, and this grid row's part.
  double* pivots(Block& panel) { return panel.as<double>(); }
  double* below(Block& panel) { return panel.as<double>() + nb_; }
  size_t panel_bytes(int step) const {
    return (static_cast<size_t>(nb_) +
            static_cast<size_t>(panel_height(step)) * static_cast<size_t>(panel_width(step))) *
           8;
  }

  // The best of all grid rows' candidates: {|value|, value, row, the row itself ...}.
  void choose_pivot(int width) {
    for (int distance = 1; distance < rows_; ++distance) {
      const int to = rank_of((my_row_ + distance) % rows_, my_column_);
      const int from = rank_of((my_row_ + rows_ - distance) % rows_, my_column_);
      const size_t bytes = static_cast<size_t>(width + 2) * 8;
      if (distance == 1) std::memcpy(best_row(), row_.data, bytes);
      channel_.send_receive(to, part(row_, 0, bytes), from, part(other_, 0, bytes), 11);
      const double* theirs = other_.as<double>();
      const double* best = best_row();
      const double a = std::abs(theirs[1]), b = std::abs(best[1]);
      if (a > b || (a == b && theirs[0] < best[0])) std::memcpy(best_row(), theirs, bytes);
    }
    if (rows_ == 1) std::memcpy(best_row(), row_.data, static_cast<size_t>(width + 2) * 8);
  }
  double* best_row() { return row_.as<double>() + nb_ + 2; }

  void factor_panel(int step, Block& panel) {
    const int width = panel_width(step), first = step * nb_;
    const int left = first_local(first, my_column_, columns_);
    const int begin = first_local(first, my_row_, rows_);
    for (int k = 0; k < width; ++k) {
      const int row = first + k;
      const bool mine = has_row(row);
      const int start = begin + (mine ? k : (has_row(first) ? nb_ : 0));
      int best = -1;
      for (int i = start; i < height_; ++i)
        if (best < 0 || std::abs(at(i, left + k)) > std::abs(at(best, left + k))) best = i;
      double* candidate = row_.as<double>();
      candidate[0] = best < 0 ? n_ : global(best, my_row_, rows_);
      for (int j = 0; j < width; ++j) candidate[1 + j] = best < 0 ? 0 : at(best, left + j);
      // The value to compare by comes second: the row is turned so that column k is first.
      std::rotate(candidate + 1, candidate + 1 + k, candidate + 1 + width);
      choose_pivot(width);
      double* chosen = best_row();
      const int pivot = static_cast<int>(chosen[0]);
      std::rotate(chosen + 1, chosen + 1 + (width - k), chosen + 1 + width);
      pivots(panel)[k] = pivot;
      exchange_row(row, pivot, left, width);
      for (int j = 0; j < width && mine; ++j) at(local_row(row), left + j) = chosen[1 + j];
      const double scale = 1.0 / chosen[1 + k];
      const int after = begin + (mine ? k + 1 : (has_row(first) ? nb_ : 0));
      for (int i = after; i < height_; ++i) at(i, left + k) *= scale;
      for (int j = k + 1; j < width; ++j)
        for (int i = after; i < height_; ++i) at(i, left + j) -= at(i, left + k) * chosen[1 + j];
    }
    const int rows = panel_height(step);
    for (int j = 0; j < width; ++j)
      std::copy_n(rows > 0 ? &at(begin, left + j) : nullptr, rows,
                  below(panel) + static_cast<size_t>(j) * static_cast<size_t>(rows));
  }

  // The panel's row `row` goes where the pivot's was.
  void exchange_row(int row, int pivot, int left, int width) {
    if (row == pivot) return;
    const size_t bytes = static_cast<size_t>(width) * 8;
    const int from = rank_of(row / nb_ % rows_, my_column_);
    const int to = rank_of(pivot / nb_ % rows_, my_column_);
    double* moved = other_.as<double>();
    if (has_row(row))
      for (int j = 0; j < width; ++j) moved[j] = at(local_row(row), left + j);
    if (from != to && has_row(row)) channel_.send(to, 12, part(other_, 0, bytes));
    if (!has_row(pivot)) return;
    if (from != to) channel_.receive(from, 12, part(other_, 0, bytes));
    for (int j = 0; j < width; ++j) at(local_row(pivot), left + j) = moved[j];
  }

  // One ring along the grid row: the owner sends to its right, who passes it on. The owner sends
  // before it updates the rest: that is the look-ahead.
  void post_panel(int step, Block& panel) {
    if (my_column_ == step % columns_ && columns_ > 1) {
      // Its memory is used again two panels later. The panel between comes from a rank that has
      // this one, directly or by the ring.
      channel_.post(rank_of(my_row_, (my_column_ + 1) % columns_), 13,
                    part(panel, 0, panel_bytes(step)));
      posted_ = step;
    }
  }
  void send_panel(int step, Block& panel) {
    if (columns_ == 1) return;
    const int owner = step % columns_, distance = (my_column_ - owner + columns_) % columns_;
    const int right = rank_of(my_row_, (my_column_ + 1) % columns_);
    const int left = rank_of(my_row_, (my_column_ + columns_ - 1) % columns_);
    const Part bytes = part(panel, 0, panel_bytes(step));
    if (distance == 0) {
      if (posted_ != step) channel_.send(right, 13, bytes);
      return;
    }
    channel_.receive(left, 13, bytes);
    if (distance + 1 < columns_) channel_.send(right, 13, bytes);
  }

  // Rows change places in all columns but the panel's own, which did so already.
  void apply_pivots(int step, Block& panel) {
    const int width = panel_width(step), first = step * nb_;
    const int left = first_local(first, my_column_, columns_);
    const bool owner = my_column_ == step % columns_;
    // Columns left of the panel belong to L, which nothing reads again.
    const int begin = left + (owner ? width : 0);
    const int count = width_ - begin;
    if (count <= 0) return;
    const size_t bytes = static_cast<size_t>(count) * 8;
    for (int k = 0; k < width; ++k) {
      const int row = first + k, pivot = static_cast<int>(pivots(panel)[k]);
      if (row == pivot) continue;
      const bool has_one = has_row(row), has_other = has_row(pivot);
      if (has_one && has_other) {
        for (int j = begin; j < width_; ++j)
          std::swap(at(local_row(row), j), at(local_row(pivot), j));
      } else if (has_one || has_other) {
        const int mine = local_row(has_one ? row : pivot);
        const int peer = rank_of((has_one ? pivot : row) / nb_ % rows_, my_column_);
        for (int j = 0; j < count; ++j) swapped_.as<double>()[j] = at(mine, begin + j);
        channel_.send_receive(peer, part(swapped_, 0, bytes), peer, part(received_, 0, bytes), 14);
        for (int j = 0; j < count; ++j) at(mine, begin + j) = received_.as<double>()[j];
      }
    }
  }

  // The rows of U right of the panel, which every grid row needs.
  void solve_top(int step, Block& panel) {
    const int width = panel_width(step), first = step * nb_, owner = step % rows_;
    const int begin = first_local(first + nb_, my_column_, columns_);
    const int count = std::max(0, width_ - begin);
    double* top = top_.as<double>();
    if (my_row_ == owner) {
      const int i = first_local(first, my_row_, rows_), rows = panel_height(step);
      const double* lower = below(panel);
      for (int j = 0; j < count; ++j) {
        for (int k = 0; k < width; ++k)
          for (int under = k + 1; under < width; ++under)
            at(i + under, begin + j) -= lower[static_cast<size_t>(k) * static_cast<size_t>(rows) +
                                              static_cast<size_t>(under)] *
                                        at(i + k, begin + j);
        for (int k = 0; k < width; ++k) top[j * width + k] = at(i + k, begin + j);
      }
    }
    if (rows_ == 1 || count == 0) return;
    const Part bytes = part(top_, 0, static_cast<size_t>(count * width) * 8);
    for (int row = 0; row < rows_; ++row) {
      if (row == owner) continue;
      if (my_row_ == owner) channel_.send(rank_of(row, my_column_), 15, bytes);
      if (my_row_ == row) channel_.receive(rank_of(owner, my_column_), 15, bytes);
    }
  }

  // Columns [from, to) lose the product of the panel and the rows of U above.
  void update(int step, Block& panel, int from, int to) {
    const int width = panel_width(step), first = step * nb_;
    const int begin = first_local(first + nb_, my_column_, columns_);
    const int i = first_local(first + nb_, my_row_, rows_);
    const int rows = height_ - i, skip = panel_height(step) - rows;
    if (rows <= 0) return;
    const size_t stride = static_cast<size_t>(panel_height(step));
    constexpr int kTile = 256;  // rows: the tile of the panel stays in L2
    for (int tile = 0; tile < rows; tile += kTile) {
      const int count = std::min(kTile, rows - tile);
      for (int j = from; j < to; ++j) {
        double* __restrict out = &at(i + tile, j);
        const double* factors = top_.as<double>() + (j - begin) * width;
        for (int k = 0; k < width; ++k) {
          const double* __restrict in =
              below(panel) + static_cast<size_t>(k) * stride + skip + tile;
          const double factor = factors[k];
          for (int r = 0; r < count; ++r) out[r] -= in[r] * factor;
        }
      }
    }
  }

  Channel& channel_;
  int n_, nb_, rows_, columns_, my_row_, my_column_, height_, width_;
  std::vector<double> a_;
  Block panels_[2], row_, other_, top_, swapped_, received_;
  int posted_ = -1;
};

int rows_of(const Arguments& arguments, int ranks) {
  return arguments.rows != 0 ? arguments.rows : (ranks % 2 == 0 && ranks > 2 ? 2 : 1);
}

}  // namespace

void check_hpl(const Arguments& arguments, int ranks) {
  if (ranks % rows_of(arguments, ranks) != 0) usage("hpl: --rows must divide --ranks");
  if (arguments.order % arguments.block != 0) usage("hpl: --block must divide --order");
}

Outcome run_hpl(Channel& channel, const Arguments& arguments) {
  const int rows = rows_of(arguments, channel.size());
  Outcome outcome;
  Solver solver(channel, arguments.order, arguments.block, rows);
  Timer timer(channel);
  timer.start();
  solver.factor();
  std::vector<double> x = solver.solve();
  timer.finish(outcome);
  if (arguments.corrupt) x[x.size() / 2] *= 1.001;
  const double residual = solver.residual(x);
  outcome.verified = residual < kMostResidual;  // false for NaN too
  outcome.wrong = "residual " + std::to_string(residual);
  const double n = arguments.order;
  const double flops = n * n * (2.0 * n / 3.0 + 1.5);
  outcome.mops = flops / outcome.seconds * 1e-6;
  outcome.more = ",\"order\":" + std::to_string(arguments.order) +
                 ",\"block\":" + std::to_string(arguments.block) + ",\"grid\":\"" +
                 std::to_string(rows) + "x" + std::to_string(channel.size() / rows) +
                 "\",\"residual\":" + std::to_string(residual);
  return outcome;
}

}  // namespace npb
