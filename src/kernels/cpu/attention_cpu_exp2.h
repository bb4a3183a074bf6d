/*
 * Computes v_exp2 (2^x) by a polynomial, for instruction sets without the AVX-512 instruction
 * scalef. The including file must define vf, vi, v_fma, v_max and v_set1.
 *
 * Adding 1.5 * 2^23 + 127 rounds x to the nearest integer n. The low bits of the sum are n + 127,
 * which is the exponent field of the float32 number 2^n. For x below -127 the exponent field is 0,
 * so the result is 0. NaN stays NaN. The minimax polynomial of degree 6 has the relative error
 * 2e-9.
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
