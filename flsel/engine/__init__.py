"""The rules of a round and the server that runs them: who is asked, who trains, what it costs."""
