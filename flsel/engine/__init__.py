"""The rules of a round and the server that plays them: who is asked, who trains, what it costs."""
