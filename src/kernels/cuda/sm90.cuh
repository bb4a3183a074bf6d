/* Wrappers of Hopper instructions. wgmma operands are blocks of 8 x 16 bytes without swizzle. */
#ifndef KVD_KERNELS_CUDA_SM90_CUH
#define KVD_KERNELS_CUDA_SM90_CUH

#include "kernels/cuda/mma.cuh"

__device__ __forceinline__ uint32_t kvd_smem(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void mbar_init(uint32_t bar, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void mbar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void mbar_arrive_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n"
                 "}\n" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

/* Waits at a barrier. The warp sleeps between polls, so that computing warps can issue more
 * instructions. */
__device__ __forceinline__ void mbar_wait_asleep(uint32_t bar, uint32_t parity)
{
    for (;;) {
        uint32_t yes;
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}\n"
                     : "=r"(yes)
                     : "r"(bar), "r"(parity)
                     : "memory");
        if (yes)
            return;
        __nanosleep(128);
    }
}

__device__ __forceinline__ void mbar_meet(uint32_t bar)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 ".reg .b64 state;\n"
                 "mbarrier.arrive.shared::cta.b64 state, [%0];\n"
                 "again:\n"
                 "mbarrier.try_wait.shared::cta.b64 p, [%0], state;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n"
                 "}\n" ::"r"(bar)
                 : "memory");
}

/* Starts copying `bytes` bytes, a multiple of 16, to shared memory; mbarrier `bar` counts them. */
__device__ __forceinline__ void bulk_copy(uint32_t dst, const void *src, uint32_t bytes,
                                          uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(dst),
        "l"(src), "r"(bytes), "r"(bar)
        : "memory");
}
__device__ __forceinline__ void fence_mbar_init(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void fence_proxy_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void bar_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void bar_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/* Returns true in exactly one lane of a converged warp. */
__device__ __forceinline__ bool elect_one(void)
{
    uint32_t yes;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(yes));
    return yes;
}
/* Returns threadIdx.x % 128, read again at each call, which saves registers. */
__device__ __forceinline__ uint32_t thread_of_group(void)
{
    uint32_t x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x % 128;
}
__device__ __forceinline__ uint32_t warp_now(void)
{
    uint32_t x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x / 32;
}
template <int N> __device__ __forceinline__ void registers_up(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void registers_down(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* Returns a wgmma matrix descriptor. `lead` and `stride`: leading-dimension and stride-dimension
 * byte offsets of the PTX manual. */
__device__ __forceinline__ uint64_t wgmma_desc(uint32_t smem, uint32_t lead, uint32_t stride)
{
    return (uint64_t)((smem & 0x3ffff) >> 4) | (uint64_t)(lead >> 4) << 16 |
           (uint64_t)(stride >> 4) << 32;
}
__device__ __forceinline__ void wgmma_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> __device__ __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* Keeps the compiler from moving uses of x across this point, because a wgmma that reads or writes
 * x is still running. */
template <int N> __device__ __forceinline__ void hold(float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(x[i])::"memory");
}
template <int N> __device__ __forceinline__ void hold(uint32_t (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(x[i])::"memory");
}

#define KVD_D0  "%0,%1,%2,%3,%4,%5,%6,%7"
#define KVD_D1  KVD_D0 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define KVD_D2  KVD_D1 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define KVD_D3  KVD_D2 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define KVD_D4  KVD_D3 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define KVD_D5  KVD_D4 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define KVD_D6  KVD_D5 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define KVD_D7  KVD_D6 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define KVD_D8  KVD_D7 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define KVD_D9  KVD_D8 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define KVD_D10 KVD_D9 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define KVD_D11 KVD_D10 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define KVD_D12 KVD_D11 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define KVD_D13 KVD_D12 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define KVD_D14 KVD_D13 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define KVD_D15 KVD_D14 ",%120,%121,%122,%123,%124,%125,%126,%127"
#define KVD_F(i)                                                                                   \
    "+f"(x[8 * i]), "+f"(x[8 * i + 1]), "+f"(x[8 * i + 2]), "+f"(x[8 * i + 3]),                    \
        "+f"(x[8 * i + 4]), "+f"(x[8 * i + 5]), "+f"(x[8 * i + 6]), "+f"(x[8 * i + 7])
#define KVD_F0  KVD_F(0)
#define KVD_F1  KVD_F0, KVD_F(1)
#define KVD_F2  KVD_F1, KVD_F(2)
#define KVD_F3  KVD_F2, KVD_F(3)
#define KVD_F4  KVD_F3, KVD_F(4)
#define KVD_F5  KVD_F4, KVD_F(5)
#define KVD_F6  KVD_F5, KVD_F(6)
#define KVD_F7  KVD_F6, KVD_F(7)
#define KVD_F8  KVD_F7, KVD_F(8)
#define KVD_F9  KVD_F8, KVD_F(9)
#define KVD_F10 KVD_F9, KVD_F(10)
#define KVD_F11 KVD_F10, KVD_F(11)
#define KVD_F12 KVD_F11, KVD_F(12)
#define KVD_F13 KVD_F12, KVD_F(13)
#define KVD_F14 KVD_F13, KVD_F(14)
#define KVD_F15 KVD_F14, KVD_F(15)

/* Computes x [64][N] = A [64][16] B [16][N], plus the old x if `more`, for A and B in shared
 * memory. In both, the summed index is contiguous. */
#define KVD_WGMMA_SS(N, R, FS, A, B, P)                                                            \
    template <bool BF16>                                                                           \
    __device__ __forceinline__ void wgmma_ss(float(&x)[N / 2], uint64_t a, uint64_t b, int more)   \
    {                                                                                              \
        if constexpr (BF16)                                                                        \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\n"                            \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" R "}, " A    \
                         ", " B ", p, 1, 1, 0, 0;\n}\n"                                            \
                         : FS                                                                      \
                         : "l"(a), "l"(b), "r"(more));                                             \
        else                                                                                       \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\n"                            \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" R "}, " A      \
                         ", " B ", p, 1, 1, 0, 0;\n}\n"                                            \
                         : FS                                                                      \
                         : "l"(a), "l"(b), "r"(more));                                             \
    }
KVD_WGMMA_SS(80, KVD_D4, KVD_F4, "%40", "%41", "%42")
KVD_WGMMA_SS(96, KVD_D5, KVD_F5, "%48", "%49", "%50")
KVD_WGMMA_SS(112, KVD_D6, KVD_F6, "%56", "%57", "%58")
KVD_WGMMA_SS(128, KVD_D7, KVD_F7, "%64", "%65", "%66")
KVD_WGMMA_SS(256, KVD_D15, KVD_F15, "%128", "%129", "%130")

/* Computes x [64][N] += A [64][16] B [16][N] for A in registers and B in shared memory. */
#define KVD_WGMMA_RS(N, R, FS, A0, A1, A2, A3, B)                                                  \
    template <bool BF16>                                                                           \
    __device__ __forceinline__ void wgmma_rs(float(&x)[N / 2], uint32_t a0, uint32_t a1,           \
                                             uint32_t a2, uint32_t a3, uint64_t b)                 \
    {                                                                                              \
        if constexpr (BF16)                                                                        \
            asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" R "}, {" A0  \
                         "," A1 "," A2 "," A3 "}, " B ", p, 1, 1, 1;\n}\n"                         \
                         : FS                                                                      \
                         : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));                            \
        else                                                                                       \
            asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" R "}, {" A0    \
                         "," A1 "," A2 "," A3 "}, " B ", p, 1, 1, 1;\n}\n"                         \
                         : FS                                                                      \
                         : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));                            \
    }
KVD_WGMMA_RS(16, KVD_D0, KVD_F0, "%8", "%9", "%10", "%11", "%12")
KVD_WGMMA_RS(32, KVD_D1, KVD_F1, "%16", "%17", "%18", "%19", "%20")
KVD_WGMMA_RS(48, KVD_D2, KVD_F2, "%24", "%25", "%26", "%27", "%28")
KVD_WGMMA_RS(64, KVD_D3, KVD_F3, "%32", "%33", "%34", "%35", "%36")
KVD_WGMMA_RS(80, KVD_D4, KVD_F4, "%40", "%41", "%42", "%43", "%44")
KVD_WGMMA_RS(96, KVD_D5, KVD_F5, "%48", "%49", "%50", "%51", "%52")
KVD_WGMMA_RS(112, KVD_D6, KVD_F6, "%56", "%57", "%58", "%59", "%60")
KVD_WGMMA_RS(128, KVD_D7, KVD_F7, "%64", "%65", "%66", "%67", "%68")
KVD_WGMMA_RS(192, KVD_D11, KVD_F11, "%96", "%97", "%98", "%99", "%100")
KVD_WGMMA_RS(256, KVD_D15, KVD_F15, "%128", "%129", "%130", "%131", "%132")

#endif
