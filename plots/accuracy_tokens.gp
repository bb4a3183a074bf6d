# Quality against calibration tokens. csv: series, n_tokens, top1_share, _lo, _hi, kl, _lo, _hi
stats csv skip 1 using (note(strcol(1))) nooutput
n = words(names)
rows = ceil(n/2.0)
foot = 0.20 + 0.055*rows
set logscale x 2
set format x '%.0f'
set xtics rotate by -35 font ',11'
set bars 0.5
set multiplot
do for [c=1:2] {
  set lmargin at screen (c-1)*0.5 + 0.085
  set rmargin at screen c*0.5 - 0.03
  set tmargin at screen 0.91
  set bmargin at screen foot
  set title (c == 1 ? 'top-1 accuracy / uncompressed' : 'KL divergence, nats') offset 0,-0.5
  set xlabel 'calibration tokens' offset 0,0.3
  if (c == 1) { set key at screen 0.5, screen 0.01 center bottom vertical maxrows rows } else { unset key; set logscale y; set format y '%g' }
  k = 3*c
  plot for [i=1:n] csv skip 1 using (strcol(1) eq word(names, i) ? $2 : NaN):k:k+1:k+2 with yerrorbars lt i lw 0.8 notitle, \
       for [i=1:n] csv skip 1 using (strcol(1) eq word(names, i) ? $2 : NaN):k with linespoints lt i title word(names, i)
}
unset multiplot
