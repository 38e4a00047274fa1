use super::*;

fn window() -> Window {
    Window::new(&Config { window_packets: 800, min_window: 16, loss_tolerance: 12, ..Config::default() })
}

#[test]
fn loss_within_the_tolerance_does_not_shrink_the_window() {
    let mut window = window();
    for round in 0..100 {
        window.on_lost(40);
        window.on_acked(round * 1000, 760, 1000);
    }
    assert_eq!(window.limit(), 800);
}

#[test]
fn heavy_loss_halves_it_once_a_round_down_to_the_minimum_and_it_grows_back() {
    let mut window = window();
    window.on_lost(200);
    window.on_acked(0, 300, 1000);
    assert_eq!(window.limit(), 400);
    window.on_lost(200);
    window.on_acked(500, 100, 1000);
    assert_eq!(window.limit(), 400, "the round is not over");
    window.on_acked(1000, 1, 1000);
    assert_eq!(window.limit(), 200);
    window.on_lost(30);
    window.on_acked(2000, 33, 1000);
    assert_eq!(window.limit(), 200, "too few to tell");
    for round in 3..20 {
        window.on_lost(100);
        window.on_acked(round * 1000, 1, 1000);
    }
    assert_eq!(window.limit(), 16);
    let mut rounds = 20;
    while window.limit() < 800 {
        window.on_acked(rounds * 1000, window.limit(), 1000);
        rounds += 1;
    }
    assert!(rounds < 60, "{rounds}");
    window.on_timeout();
    assert_eq!(window.limit(), 16);
}

#[test]
fn datagrams_and_their_payload_are_limited() {
    let config = Config { window_packets: 2, window_bytes: 1000, ..Config::default() };
    let window = Window::new(&config);
    assert!(window.is_open(1, 999));
    assert!(!window.is_open(2, 999));
    assert!(!window.is_open(1, 1000));
}
