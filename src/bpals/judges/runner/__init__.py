"""The runner of image judges: from images to answers in the ledger.

runner         the loop over the images: what to ask, when to stop, what to keep
dispatch       from one image to the servers of a judge: concurrency, retries, failover
transport      one HTTP request and its response
retry          how long to wait, when to give up, how many requests at once
executor       where the work happens: this process, or the workers of ray_executor
messages       Request and Response: one image to judge, and the judge's replies about it
writer         group commits into the ledger
progress       counts for the live line, `judge status` and the record of the run
"""
