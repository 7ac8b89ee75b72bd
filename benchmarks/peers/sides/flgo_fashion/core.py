"""What FLGo asks of a benchmark: who makes its task, who loads it, and the loss."""

import sys

from flgo.benchmark.toolkits.cv.classification import FromDatasetGenerator, FromDatasetPipe, GeneralCalculator
from torch.utils.data import TensorDataset
from workload import Workload

work = Workload(sys.argv[1])
images = TensorDataset(work.x, work.y)


class TaskGenerator(FromDatasetGenerator):
    def __init__(self):
        super().__init__(benchmark="flgo_fashion", train_data=images)


class TaskPipe(FromDatasetPipe):
    class TaskDataset(FromDatasetPipe.TaskDataset):
        """FLGo's, as this torch wants its subsets."""

        def __getitems__(self, indices):
            return [self[index] for index in indices]

    def __init__(self, task_path):
        super().__init__(task_path, train_data=images)


TaskCalculator = GeneralCalculator
