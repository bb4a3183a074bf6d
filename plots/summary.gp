# Top-1 accuracy against the share of bytes removed. csv: series, bytes_removed, top1_share, _lo, _hi; lowest_share: the lower end of the axis.
stats csv skip 1 using (note(strcol(1))) nooutput
n = words(names)
do for [i=1:n] { found = 0; stats csv skip 1 using (tally(strcol(1) eq word(names, i))) nooutput; is_grid = is_grid.(found > 40 ? ' 1' : ' 0') }
rows = key_rows(6)
foot = (66 + 20.0*rows)/height
set xrange [0:1]
set xtics 0.1
unset key
@no_span
stats csv skip 1 using (span(column(3)) + span(column(4)) + span(column(5))) nooutput
lowest = lowest - 0.005
set yrange [(lowest > lowest_share ? (lowest < 0.98 ? lowest : 0.98) : lowest_share):(highest > 1.01 ? highest + 0.003 : 1.01)]
set multiplot
set lmargin at screen 0.075
set rmargin at screen 0.985
set tmargin at screen 1 - 14.0/height
set bmargin at screen foot
set xlabel 'share of the cache removed' offset 0,0.3
set ylabel 'top-1 accuracy / uncompressed' offset 1,0
set arrow 1 from graph 0, first 0.99 to graph 1, first 0.99 nohead dt 2 lc rgb '#7f7f7f' lw 1.2 back
plot for [i=1:n] csv skip 1 using (strcol(1) eq word(names, i) ? $2 : NaN):4:(0):($5 - $4) with vectors nohead @thin notitle, \
     for [i=1:n] csv skip 1 using (line(i) && strcol(1) eq word(names, i) ? $2 : NaN):3 with linespoints @look lw 1.8, \
     for [i=1:n] csv skip 1 using (!line(i) && strcol(1) eq word(names, i) ? $2 : NaN):3 with points @dots
@key_below
unset multiplot
