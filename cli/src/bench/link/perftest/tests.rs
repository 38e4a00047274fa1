use super::*;

#[test]
fn the_row_of_figures_is_found() {
    let bandwidth = "\
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      1000             0.55               0.49   		   0.000936
---------------------------------------------------------------------------------------
";
    assert_eq!(row(bandwidth).unwrap()[3], 0.49);
    let latency = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 64      1000          17.02          120.11       18.30     	       19.00       	3.10  		31.00   		120.11 
";
    assert_eq!(row(latency).unwrap()[4], 18.3);
    assert_eq!(row("Couldn't connect to 127.0.0.1:18515"), None);
    assert_eq!(row("#bytes\nnot a number\n"), None);
}
