# Similarity against the number of calibration tokens (ZACK Fig. 18, FDC Fig. 14).
# csv: series, pair, n_tokens, delta_over_epsilon, aligned_over_epsilon, overlap_half, energy_half
# pairs: 'qk vw' - one column of panels each.
stats csv skip 1 using (note(strcol(1))) nooutput
n = words(names)
rows = ceil(n/2.0)
foot = 0.16 + 0.04*rows
high = (0.90 - foot - 0.07)/2
set logscale x 2
set format x '%.0f'
set xtics rotate by -35 font ',11'
set multiplot
cols = words(pairs)
do for [c=1:cols] {
  do for [r=0:1] {
    set lmargin at screen (c-1.0)/cols + 0.085
    set rmargin at screen c*1.0/cols - 0.035
    set tmargin at screen (r == 0 ? 0.90 : foot + high)
    set bmargin at screen (r == 0 ? 0.90 - high : foot)
    unset xlabel
    if (r == 1) { set xlabel 'calibration tokens'; set format x '%.0f'; unset title } else { set format x ''; set title pair_title(word(pairs, c)) offset 0,0.5 }
    if (r == 0) { set yrange [0:*]; set ylabel 'delta / epsilon' offset 1,0 } else { set yrange [*:1]; set ylabel 'leading half' offset 1,0 }
    if (c > 1) { unset ylabel }
    if (c == 1 && r == 1) { set key at screen 0.5, screen 0.01 center bottom vertical maxrows rows } else { unset key }
    if (r == 0) {
      set label 1 'solid: as printed, dashed: signs aligned' at graph 0.5, graph 1.06 center font ',11'
      plot for [i=1:n] csv skip 1 using (strcol(1) eq word(names, i) && strcol(2) eq word(pairs, c) ? $3 : NaN):4 with linespoints lt i title word(names, i), \
           for [i=1:n] csv skip 1 using (strcol(1) eq word(names, i) && strcol(2) eq word(pairs, c) ? $3 : NaN):5 with linespoints lt i dt 2 notitle
    } else {
      set label 1 'solid: overlap of subspaces, dashed: energy kept' at graph 0.5, graph 1.06 center font ',11'
      plot for [i=1:n] csv skip 1 using (strcol(1) eq word(names, i) && strcol(2) eq word(pairs, c) ? $3 : NaN):6 with linespoints lt i title word(names, i), \
           for [i=1:n] csv skip 1 using (strcol(1) eq word(names, i) && strcol(2) eq word(pairs, c) ? $3 : NaN):7 with linespoints lt i dt 2 notitle
    }
  }
}
unset multiplot
