# Speed-up over cuDNN against p, a panel per case. csv: panel, case, series, case_p, speedup. panels, columns: how many.
stats csv skip 1 using (note(strcol(3))) nooutput
n = words(names)
rows = int(ceil(panels/(1.0*columns)))
keycolumns = int(width/320.0)
keyrows = int(ceil((n + 1)/(1.0*(keycolumns > 0 ? keycolumns : 1))))
foot = (22.0 + 20*keyrows)/height
head = 22.0/height
panel_title = ''
take(s) = (panel_title = s, 1)
set xrange [-0.02:0.85<*] noextend
set xtics 0.2
set mxtics 2
set mytics 2
# Panels share the vertical axis.
stats csv skip 1 using 5 nooutput
all_top = 1.25*(STATS_max > 1 ? STATS_max : 1)
set multiplot
do for [c=1:panels] {
  column_of = (c-1) % columns
  row_of = (c-1) / columns
  step = (1.0 - foot - 0.01)/rows
  set lmargin at screen column_of*(1.0/columns) + 62.0/width
  set rmargin at screen (column_of+1)*(1.0/columns) - 12.0/width
  set tmargin at screen 0.99 - row_of*step - head
  set bmargin at screen 0.99 - (row_of+1)*step + 44.0/height
  stats csv skip 1 using ($1 == c ? take(strcol(2)) : 0) nooutput
  set title panel_title offset 0,-0.5
  set yrange [0:all_top]
  if (c > panels - columns) { set xlabel 'p (fraction removed)' offset 0,0.4 } else { unset xlabel }
  if (column_of == 0) { set ylabel 'times as fast as cuDNN' offset 1.5,0 } else { unset ylabel }
  if (c == 1) { set key at screen 0.5, 4.0/height center bottom vertical maxrows keyrows } else { unset key }
  set arrow 1 from graph 0, first 1 to graph 1, first 1 nohead dt 3 lc rgb '#7f7f7f' lw 1 back
  stats csv skip 1 using ($1 == c ? $5 : NaN) nooutput
  top = STATS_max > 1 ? STATS_max : 1
  plot sample [p=0:0.83] (1/(1-p) < 1.25*top ? 1/(1-p) : NaN) with lines dt 2 lw 1.2 lc rgb '#7f7f7f' title (c == 1 ? '1 / (1 - p)' : ''), \
       for [i=1:n] csv skip 1 using ($1 == c && strcol(3) eq word(names, i) ? $4 : NaN):5 with linespoints @look title (c == 1 ? word(names, i) : '')
}
unset multiplot
