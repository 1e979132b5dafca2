import distgrad

report = distgrad.run("all_reduce_sum.json", subject="torch_nn", world_size=[2, 3])
print(report["summary"]["as_expected"])
