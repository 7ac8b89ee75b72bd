"""The rules of a round and the server that runs them: questions, training, aggregation, costs."""
