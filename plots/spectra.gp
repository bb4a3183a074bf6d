# Average singular value per head dimension (ZACK Fig. 5 and 10, FDC Fig. 3).
# csv: series, pair, dim, mean_sigma, mean_sigma_normalised
# pairs: 'k v' - one column of panels each; raw above, per square root of rows below.
stats csv skip 1 using (note(strcol(1))) nooutput
n = words(names)
key_space = 0.06 + 0.035*ceil(n/3.0)

set logscale y
set format y '10^{%L}'
set format y '%g'
set multiplot
cols = words(pairs)
do for [c=1:cols] {
  do for [r=0:1] {
    set lmargin at screen (c-1.0)/cols + 0.085
    set rmargin at screen c*1.0/cols - 0.015
    set tmargin at screen (r == 0 ? 0.945 : 0.535 - 0.4*key_space + 0.02)
    set bmargin at screen (r == 0 ? 0.60 - 0.3*key_space + 0.02 : key_space + 0.11)
    set title pair_title(word(pairs, c)).(r == 0 ? '' : ', per square root of rows') offset 0,-0.6
    if (r == 1) { set xlabel 'head dimension (0 = largest)' offset 0,0.4 } else { unset xlabel }
    if (c == 1) { set ylabel (r == 0 ? 'average singular value' : 'normalised') offset 1,0 } else { unset ylabel }
    if (c == 1 && r == 1) { set key at screen 0.5, screen key_space center top maxrows ceil(n/3.0) } else { unset key }
    plot for [i=1:n] csv skip 1 using (strcol(1) eq word(names, i) && strcol(2) eq word(pairs, c) ? $3 : NaN):(column(4+r)) \
      with lines lw 1.6 lt i title word(names, i)
  }
}
unset multiplot
