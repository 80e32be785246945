// The equations of LU at one point: fluxes, Jacobians, the exact solution. Knows no ranks. Formulas
// after the NPB report (RNR-94-007, 3.4 and appendix), with one function for all three axes.
#pragma once

#include <cstddef>

namespace npb::lu {

inline constexpr double kC1 = 1.4, kC2 = 0.4, kC3 = 0.1, kC4 = 1.0, kC5 = 1.4;
inline constexpr double kDissipation = 0.25;
inline constexpr double kR43 = 4.0 / 3.0;
inline constexpr double kC34 = kC3 * kC4;
inline constexpr double kC1345 = kC1 * kC3 * kC4 * kC5;

// One direction: its momentum component, step sizes and second-order coefficient.
struct Axis {
  int m = 1;
  double t1 = 0, t2 = 0, t3 = 0;
  double d = 0;
};

using Matrix = double[5][5];

// The exact solution at a point of the unit cube.
void exact(double xi, double eta, double zeta, double* out);

inline double momentum_square(const double* u) { return u[1] * u[1] + u[2] * u[2] + u[3] * u[3]; }

inline void flux(const double* u, int m, double* out) {
  const double speed = u[m] / u[0];
  const double q = 0.5 * momentum_square(u) / u[0];
  out[0] = u[m];
  for (int c = 1; c < 4; ++c) out[c] = u[c] * speed;
  out[m] += kC2 * (u[4] - q);
  out[4] = (kC1 * u[4] - kC2 * q) * speed;
}

// Between a point and the one before it.
inline void viscous(const double* u, const double* before, const Axis& axis, double* out) {
  double now[5], then[5];
  double squares = 0;
  for (int c = 1; c < 5; ++c) {
    now[c] = u[c] / u[0];
    then[c] = before[c] / before[0];
    out[c] = axis.t3 * (now[c] - then[c]);
  }
  for (int c = 1; c < 4; ++c) squares += now[c] * now[c] - then[c] * then[c];
  out[axis.m] *= kR43;
  out[4] = 0.5 * (1.0 - kC1 * kC5) * axis.t3 * squares +
           axis.t3 / 6.0 * (now[axis.m] * now[axis.m] - then[axis.m] * then[axis.m]) +
           kC1 * kC5 * axis.t3 * (now[4] - then[4]);
}

// Adds what one axis contributes to the right side at point `position` of `count`; `stride` is the
// distance of neighbours in doubles.
inline void add_axis(const double* u, ptrdiff_t stride, int position, int count, const Axis& axis,
                     double* out) {
  double ahead[5], behind[5];
  flux(u + stride, axis.m, ahead);
  flux(u - stride, axis.m, behind);
  for (int c = 0; c < 5; ++c) out[c] -= axis.t2 * (ahead[c] - behind[c]);
  viscous(u + stride, u, axis, ahead);
  viscous(u, u - stride, axis, behind);
  for (int c = 1; c < 5; ++c) out[c] += axis.t3 * kC34 * (ahead[c] - behind[c]);
  for (int c = 0; c < 5; ++c) {
    const double mid = u[c], up = u[stride + c], down = u[c - stride];
    out[c] += axis.d * axis.t1 * (down - 2.0 * mid + up);
    // Fourth differences, one-sided beside the boundary.
    double fourth = -4.0 * (down + up) + 6.0 * mid;
    if (position == 1) {
      fourth = 5.0 * mid - 4.0 * up + u[2 * stride + c];
    } else if (position == count - 2) {
      fourth = u[c - 2 * stride] - 4.0 * down + 5.0 * mid;
    } else {
      if (position != 2) fourth += u[c - 2 * stride];
      if (position != count - 3) fourth += u[2 * stride + c];
    }
    out[c] -= kDissipation * fourth;
  }
}

// out += factor * the Jacobian of the viscous terms along one axis.
inline void add_viscous_jacobian(const double* u, const Axis& axis, double factor, Matrix& out) {
  const double r = 1.0 / u[0], r2 = r * r;
  double energy = -kC1345 * r2 * u[4];
  for (int c = 1; c < 4; ++c) {
    const double f = (c == axis.m ? kR43 : 1.0) * kC34;
    out[c][0] -= factor * f * r2 * u[c];
    out[c][c] += factor * f * r;
    energy -= (f - kC1345) * r2 * r * u[c] * u[c];
    out[4][c] += factor * (f - kC1345) * r2 * u[c];
  }
  out[4][0] += factor * energy;
  out[4][4] += factor * kC1345 * r;
}

// out += factor * the Jacobian of flux().
inline void add_flux_jacobian(const double* u, const Axis& axis, double factor, Matrix& out) {
  const int m = axis.m;
  const double r = 1.0 / u[0], r2 = r * r, square = momentum_square(u);
  out[0][m] += factor;
  for (int c = 1; c < 4; ++c) {
    if (c == m) continue;
    out[c][0] -= factor * u[c] * u[m] * r2;
    out[c][c] += factor * u[m] * r;
    out[c][m] += factor * u[c] * r;
    out[m][c] -= factor * kC2 * u[c] * r;
    out[4][c] -= factor * kC2 * u[c] * u[m] * r2;
  }
  out[m][0] += factor * (0.5 * kC2 * square * r2 - u[m] * u[m] * r2);
  out[m][m] += factor * (2.0 - kC2) * u[m] * r;
  out[m][4] += factor * kC2;
  out[4][0] += factor * (kC2 * square * r2 - kC1 * u[4] * r) * u[m] * r;
  out[4][m] += factor * (kC1 * u[4] * r - 0.5 * kC2 * (square + 2.0 * u[m] * u[m]) * r2);
  out[4][4] += factor * kC1 * u[m] * r;
}

// The block that couples a point to its neighbour `u` below (side -1) or above (+1).
inline void neighbour_block(const double* u, const Axis& axis, double dt, int side, Matrix& out) {
  for (auto& row : out)
    for (double& value : row) value = 0;
  add_flux_jacobian(u, axis, side * dt * axis.t2, out);
  add_viscous_jacobian(u, axis, -dt * axis.t1, out);
  for (int c = 0; c < 5; ++c) out[c][c] -= dt * axis.t1 * axis.d;
}

inline void diagonal_block(const double* u, const Axis* axes, double dt, Matrix& out) {
  for (auto& row : out)
    for (double& value : row) value = 0;
  for (int c = 0; c < 5; ++c) out[c][c] = 1.0;
  for (int a = 0; a < 3; ++a) {
    add_viscous_jacobian(u, axes[a], 2.0 * dt * axes[a].t1, out);
    for (int c = 0; c < 5; ++c) out[c][c] += 2.0 * dt * axes[a].t1 * axes[a].d;
  }
}

// right := matrix^-1 right, by elimination without pivoting: the blocks are dominated by their
// diagonal. `matrix` is used up.
inline void solve_block(Matrix& matrix, double* right) {
  for (int p = 0; p < 5; ++p) {
    const double inverse = 1.0 / matrix[p][p];
    for (int r = p + 1; r < 5; ++r) {
      const double factor = matrix[r][p] * inverse;
      for (int c = p + 1; c < 5; ++c) matrix[r][c] -= factor * matrix[p][c];
      right[r] -= factor * right[p];
    }
  }
  for (int p = 4; p >= 0; --p) {
    for (int c = p + 1; c < 5; ++c) right[p] -= matrix[p][c] * right[c];
    right[p] /= matrix[p][p];
  }
}

}  // namespace npb::lu
