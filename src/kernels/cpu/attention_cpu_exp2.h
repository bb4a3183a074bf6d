/*
 * Computes v_exp2 (2^x) by a minimax polynomial of degree 6, relative error 2e-9, without AVX-512's
 * scalef. The including file must define vf, vi, v_fma, v_max and v_set1.
 *
 * Adding 1.5 * 2^23 + 127 rounds x to the integer n and leaves n + 127, the exponent field of 2^n,
 * in the low bits. For x < -127 the result is 0. NaN stays NaN.
 */
static inline vf v_exp2(vf x)
{
    const vf magic = v_set1(0x1.8p23f + 127);
    x = v_max(v_set1(-127), x);
    const vf shifted = x + magic, f = x - (shifted - magic);
    const vf two_n = (vf)((vi)shifted << 23);
    vf p = v_set1(0.0001534581242594868f);
    p = v_fma(p, f, v_set1(0.0013399930903688073f));
    p = v_fma(p, f, v_set1(0.009618489071726799f));
    p = v_fma(p, f, v_set1(0.05550328642129898f));
    p = v_fma(p, f, v_set1(0.24022646248340607f));
    p = v_fma(p, f, v_set1(0.6931471824645996f));
    p = v_fma(p, f, v_set1(1));
    return p * two_n;
}
