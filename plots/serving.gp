# Latency against the rate of requests. csv: series, rate, latency_mean_s, _lo, _hi, ttft_mean_s, _lo, _hi, tbt_mean_s, _lo, _hi
stats csv skip 1 using (note(strcol(1))) nooutput
n = words(names)
rows = key_rows(3)
foot = (62 + 19.0*rows)/height
set xrange [0:*]
set offsets 0, graph 0.03, 0, 0
set mxtics 2
set format y '%g'
unset key
set multiplot
do for [c=1:3] {
  set lmargin at screen (c-1)*0.333 + 0.062
  set rmargin at screen c*0.333 - 0.02
  set tmargin at screen 0.92
  set bmargin at screen foot
  set title (c == 1 ? 'normalised latency, ms/token' : c == 2 ? 'TTFT, s' : 'TBT, ms') offset 0,-0.5
  set xlabel 'requests per second' offset 0,0.3
  k = 3*c
  u = c == 2 ? 1 : 1000
  ok = 0
  unset logscale
  set yrange [0:*]
  stats csv skip 1 using (column(k) > 0 ? count(0) : 0) nooutput
  if (ok > 0) {
    stats csv skip 1 using (column(k) > 0 ? column(k) : NaN) nooutput
    if (STATS_max > 10*STATS_min) { set yrange [*:*]; set logscale y }
    plot for [i=1:n] csv skip 1 using (strcol(1) eq word(names, i) && column(k+1) > 0 ? $2 : NaN):(u*column(k+1)):(0):(u*(column(k+2) - column(k+1))) with vectors nohead lt i lw 0.8 dt 1 notitle, \
         for [i=1:n] csv skip 1 using (strcol(1) eq word(names, i) && column(k) > 0 ? $2 : NaN):(u*column(k)) with linespoints lt i
  } else {
    set label 9 'no values to draw' at graph 0.5, graph 0.5 center
    plot [0:1] [0:1] NaN notitle
    unset label 9
  }
}
@key_below
unset multiplot
