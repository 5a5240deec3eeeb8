from lockstep.campaign.campaign import Launch
from lockstep.campaign.progress import TimeLeft, short_names


def test_a_case_is_named_by_what_tells_it_from_the_others_of_its_test():
    one = "test_strong_scaling[workload=resnet18-global_batch=64]"
    small = "test_bucket_size[workload=resnet18-bucket_cap_mb=1-local_batch=32]"
    large = "test_bucket_size[workload=resnet18-bucket_cap_mb=25-local_batch=32]"
    assert short_names([one, small, large]) == {
        one: "strong_scaling workload=resnet18, global_batch=64",
        small: "bucket_size bucket_cap_mb=1",
        large: "bucket_size bucket_cap_mb=25",
    }


def test_names_stay_apart_where_two_factors_differ():
    cases = [f"test_x[a={a}-b={b}-c=0]" for a in (1, 2) for b in (1, 2)]
    names = short_names(cases)
    assert len(set(names.values())) == len(cases)
    assert names[cases[0]] == "x a=1, b=1"


def test_the_time_left_falls_and_follows_the_launches_of_each_size():
    left = TimeLeft([Launch(size, repeat) for repeat in range(2) for size in (1, 2)], 0.0)
    assert left.left_s(5.0) is None
    left.advance(0.5)
    assert left.left_s(10.0) == 20 * 4 - 10
    left.end(20.0)
    left.end(60.0)  # two ranks take twice as long
    assert left.left_s(60.0) == 20 + 40
    assert left.left_s(70.0) == 10 + 40
    assert left.left_s(100.0) == 40  # a launch that takes longer than its like
