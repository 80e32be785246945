// FT: a partial differential equation by 3-D Fourier transforms. Own code after the NPB report
// (RNR-94-007, 2.5) and the official checksums. Slabs of planes z in space, of x in frequency; one
// alltoall for each transform.
#include <algorithm>
#include <cmath>
#include <complex>

#include "benchmarks/npb/channel.h"
#include "benchmarks/npb/random.h"

namespace npb {
namespace {

using Complex = std::complex<double>;
constexpr int kIterations = 6;
constexpr double kAlpha = 1e-6;
constexpr double kEpsilon = 1e-12;
constexpr double kPi = 3.14159265358979323846;

struct Problem {
  int nx, ny, nz;
  double sums[kIterations][2];
};
const Problem kS = {64,
                    64,
                    64,
                    {{554.6087004964, 484.5363331978},
                     {554.6385409189, 486.5304269511},
                     {554.6148406171, 488.3910722336},
                     {554.5423607415, 490.1273169046},
                     {554.4255039624, 491.7475857993},
                     {554.2683411902, 493.2597244941}}};
const Problem kW = {128,
                    128,
                    32,
                    {{567.3612178944, 529.3246849175},
                     {563.1436885271, 528.2149986629},
                     {559.4024089970, 527.0996558037},
                     {556.0698047020, 526.0027904925},
                     {553.0898991250, 524.9400845633},
                     {550.4159734538, 523.9212247086}}};
const Problem kA = {256,
                    256,
                    128,
                    {{504.6735008193, 511.4047905510},
                     {505.9412319734, 509.8809666433},
                     {506.9376896287, 509.8144042213},
                     {507.7892868474, 510.1336130759},
                     {508.5233095391, 510.4914655194},
                     {509.1487099959, 510.7917842803}}};

// Unnormalised transforms of one length, a power of two; Stockham's order, so no bit reversal.
class Fourier {
 public:
  explicit Fourier(int length) : n_(static_cast<size_t>(length)), roots_(n_), other_(n_) {
    for (size_t i = 0; i < n_; ++i) {
      const double angle = -2.0 * kPi * static_cast<double>(i) / static_cast<double>(n_);
      roots_[i] = {std::cos(angle), std::sin(angle)};
    }
  }
  // `inverse`: with the opposite sign.
  void transform(Complex* data, bool inverse) {
    Complex* from = data;
    Complex* to = other_.data();
    for (size_t half = n_ / 2, stride = 1; half >= 1; half /= 2, stride *= 2) {
      for (size_t p = 0; p < half; ++p) {
        const Complex root = inverse ? std::conj(roots_[p * stride]) : roots_[p * stride];
        for (size_t q = 0; q < stride; ++q) {
          const Complex a = from[q + stride * p], b = from[q + stride * (p + half)];
          const Complex d = a - b;
          to[q + stride * 2 * p] = a + b;
          // Spelled out: the operator looks for NaN.
          to[q + stride * (2 * p + 1)] = {d.real() * root.real() - d.imag() * root.imag(),
                                          d.real() * root.imag() + d.imag() * root.real()};
        }
      }
      std::swap(from, to);
    }
    if (from != data) std::copy(from, from + n_, data);
  }

 private:
  size_t n_;
  std::vector<Complex> roots_, other_;
};

class Field {
 public:
  Field(Channel& channel, const Problem& problem)
      : channel_(channel),
        nx_(static_cast<size_t>(problem.nx)),
        ny_(static_cast<size_t>(problem.ny)),
        nz_(static_cast<size_t>(problem.nz)),
        ranks_(static_cast<size_t>(channel.size())),
        own_z_(nz_ / ranks_),
        own_x_(nx_ / ranks_),
        along_x_(problem.nx),
        along_y_(problem.ny),
        along_z_(problem.nz),
        line_(std::max({nx_, ny_, nz_})) {
    const size_t bytes = nx_ * ny_ * own_z_ * sizeof(Complex);
    space_ = channel.allocate(bytes);
    packed_ = channel.allocate(bytes);
    frequencies_.resize(nx_ * ny_ * own_z_);
    factors_.resize(frequencies_.size());
  }

  void start() {
    Random random;
    random.skip(2 * nx_ * ny_ * own_z_ * static_cast<uint64_t>(channel_.rank()));
    for (size_t i = 0; i < nx_ * ny_ * own_z_; ++i) {
      const double real = random.next();
      space()[i] = {real, random.next()};
    }
    auto folded = [](size_t index, size_t n) {
      const auto i = static_cast<double>(index);
      return index < n / 2 ? i : i - static_cast<double>(n);
    };
    size_t at = 0;
    for (size_t x = 0; x < own_x_; ++x) {
      const double kx = folded(x + own_x_ * static_cast<size_t>(channel_.rank()), nx_);
      for (size_t y = 0; y < ny_; ++y) {
        const double ky = folded(y, ny_);
        for (size_t z = 0; z < nz_; ++z) {
          const double kz = folded(z, nz_);
          factors_[at++] = std::exp(-4.0 * kAlpha * kPi * kPi * (kx * kx + ky * ky + kz * kz));
        }
      }
    }
  }

  void forward() {
    planes(false);
    // To [rank of x][x][y][z of this rank], so that each part is one run.
    Complex* out = packed_.as<Complex>();
    for (size_t x = 0; x < nx_; ++x)
      for (size_t y = 0; y < ny_; ++y)
        for (size_t z = 0; z < own_z_; ++z) *out++ = space()[(z * ny_ + y) * nx_ + x];
    channel_.alltoall(whole(packed_), whole(space_));
    const Complex* in = space();
    for (size_t from = 0; from < ranks_; ++from)
      for (size_t x = 0; x < own_x_; ++x)
        for (size_t y = 0; y < ny_; ++y)
          for (size_t z = 0; z < own_z_; ++z)
            frequencies_[(x * ny_ + y) * nz_ + from * own_z_ + z] = *in++;
    for (size_t line = 0; line < own_x_ * ny_; ++line)
      along_z_.transform(&frequencies_[line * nz_], false);
  }

  void evolve() {
    for (size_t i = 0; i < frequencies_.size(); ++i) frequencies_[i] *= factors_[i];
  }

  // The frequencies stay as they are.
  void backward() {
    Complex* out = packed_.as<Complex>();
    for (size_t x = 0; x < own_x_; ++x)
      for (size_t y = 0; y < ny_; ++y) {
        const Complex* line = &frequencies_[(x * ny_ + y) * nz_];
        std::copy(line, line + nz_, line_.begin());
        along_z_.transform(line_.data(), true);
        for (size_t to = 0; to < ranks_; ++to)
          std::copy_n(&line_[to * own_z_], own_z_, out + ((to * own_x_ + x) * ny_ + y) * own_z_);
      }
    channel_.alltoall(whole(packed_), whole(space_));
    std::copy_n(space(), nx_ * ny_ * own_z_, out);
    const Complex* in = out;
    for (size_t x = 0; x < nx_; ++x)
      for (size_t y = 0; y < ny_; ++y)
        for (size_t z = 0; z < own_z_; ++z) space()[(z * ny_ + y) * nx_ + x] = *in++;
    planes(true);
  }

  Complex checksum() {
    Complex sum = 0;
    const size_t first = own_z_ * static_cast<size_t>(channel_.rank());
    for (size_t j = 1; j <= 1024; ++j) {
      const size_t z = 5 * j % nz_;
      if (z < first || z >= first + own_z_) continue;
      sum += space()[((z - first) * ny_ + 3 * j % ny_) * nx_ + j % nx_];
    }
    if (sums_.data == nullptr) sums_ = channel_.allocate(sizeof sum);
    *sums_.as<Complex>() = sum;
    channel_.allreduce(whole(sums_), Type::kDouble, Op::kSum);
    return *sums_.as<Complex>() / static_cast<double>(nx_ * ny_ * nz_);
  }
  void corrupt() { frequencies_[0] *= 1.0001; }

 private:
  Complex* space() { return space_.as<Complex>(); }
  // Lines of x and of y.
  void planes(bool inverse) {
    for (size_t z = 0; z < own_z_; ++z) {
      Complex* plane = space() + z * ny_ * nx_;
      for (size_t y = 0; y < ny_; ++y) along_x_.transform(plane + y * nx_, inverse);
      for (size_t x = 0; x < nx_; ++x) {
        for (size_t y = 0; y < ny_; ++y) line_[y] = plane[y * nx_ + x];
        along_y_.transform(line_.data(), inverse);
        for (size_t y = 0; y < ny_; ++y) plane[y * nx_ + x] = line_[y];
      }
    }
  }

  Channel& channel_;
  size_t nx_, ny_, nz_, ranks_, own_z_, own_x_;
  Fourier along_x_, along_y_, along_z_;
  std::vector<Complex> line_;
  Block space_, packed_, sums_;
  std::vector<Complex> frequencies_;  // [x of this rank][y][z]
  std::vector<double> factors_;
};

bool close(double value, double expected) {
  return std::abs((value - expected) / expected) <= kEpsilon;
}

}  // namespace

void check_ft(const Arguments& arguments, int ranks) {
  const Problem& problem = of_class(arguments, kS, kW, kA);
  if (problem.nz % ranks != 0 || problem.nx % ranks != 0)
    usage("ft: --ranks must divide the planes: give a power of two");
}

Outcome run_ft(Channel& channel, const Arguments& arguments) {
  const Problem& problem = of_class(arguments, kS, kW, kA);
  Outcome outcome;
  Field field(channel, problem);
  field.start();
  field.forward();  // untimed: touches all memory
  field.start();
  Timer timer(channel);
  timer.start();
  field.forward();
  if (arguments.corrupt && channel.rank() == 0) field.corrupt();
  outcome.verified = true;
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    field.evolve();
    field.backward();
    const Complex sum = field.checksum();
    const double* expected = problem.sums[iteration];
    if (close(sum.real(), expected[0]) && close(sum.imag(), expected[1])) continue;
    outcome.verified = false;
    if (outcome.wrong.empty())
      outcome.wrong = "checksum " + std::to_string(iteration + 1) + " is " +
                      std::to_string(sum.real()) + " + " + std::to_string(sum.imag()) + "i";
  }
  timer.finish(outcome);
  const double points = static_cast<double>(problem.nx) * problem.ny * problem.nz;
  outcome.mops = 1e-6 * points *
                 (14.8157 + 7.19641 * std::log(points) +
                  (5.23518 + 7.21113 * std::log(points)) * kIterations) /
                 outcome.seconds;
  return outcome;
}

}  // namespace npb
